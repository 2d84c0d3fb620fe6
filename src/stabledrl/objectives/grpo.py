"""GRPO on a likelihood estimate: the baseline that StableDRL is compared with (arXiv 2402.03300)."""

from torch import Tensor
from typing_extensions import override

from stabledrl.objectives.sequence_ratio import SequenceRatioObjective
from stabledrl.types import LikelihoodEstimate, RolloutBatch


class GRPO(SequenceRatioObjective):
    """The clipped policy-gradient loss of GRPO (arXiv 2402.03300, equation 3) with one ratio per sequence:

        loss = -(1 / rows) * sum_i min(rho_i A_i, clip(rho_i) A_i),  clip(rho) = clamp(rho, 1 - eps_low, 1 + eps_high)

    The exact likelihood of the paper is replaced by the ELBO, rho = exp(ELBO - old ELBO), and the gradient goes through
    rho. The clip is conditional: where A < 0 and rho is large the gradient is A * rho * grad ELBO, as large as rho,
    which a noisy estimate makes likely (log-ratios are limited to +-80, the gradient is 0 beyond). The paper's KL term
    (k3, .04) is the module's `kl_coefficient`.

    The divisor is the number of all completions of the update, so completions without a reward contribute 0 but count.

    Args:
        eps_low: The ratio's clip below 1; None, or 1 and above, for no lower bound.
        eps_high: The ratio's clip above 1; None for no upper bound.

    Raises:
        UserInputError: A value is not greater than 0.
    """

    def __init__(self, eps_low: float | None = 0.2, eps_high: float | None = 0.2) -> None:
        super().__init__(eps_low, eps_high)

    @override
    def log_ratio(self, current: LikelihoodEstimate, rollouts: RolloutBatch) -> Tensor:
        return current.elbo - rollouts.old.elbo
