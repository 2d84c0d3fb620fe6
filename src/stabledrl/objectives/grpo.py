"""GRPO on a likelihood estimate: the baseline that StableDRL is compared with (arXiv 2402.03300)."""

import torch
from torch import Tensor

from stabledrl.objectives.importance import check_eps, clamp_log_ratio, clip_log_ratio, ratio_metrics
from stabledrl.protocols import Need, Objective
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch


class GRPO(Objective):
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

    needs: frozenset[Need] = frozenset({"elbo"})
    uses_ratio = True

    def __init__(self, eps_low: float | None = 0.2, eps_high: float | None = 0.2) -> None:
        check_eps(eps_low, eps_high)
        self.eps_low = eps_low
        self.eps_high = eps_high

    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        """Computes the batch's share of the update's loss.

        Args:
            current: Estimate under the policy being trained, with gradient.
            rollouts: The same rows' rollouts.
            group_log_normalizer: Has no effect, rows do not depend on each other.

        Returns:
            Loss and the metrics of `ratio_metrics`. There, a row counts as clipped when its ratio lies outside the
            interval, also where the minimum takes the unclipped side.
        """
        log_ratio = current.elbo - rollouts.old.elbo
        ratio = torch.exp(clamp_log_ratio(log_ratio))
        clipped = torch.exp(clip_log_ratio(log_ratio, self.eps_low, self.eps_high))
        gain = torch.minimum(ratio * rollouts.advantages, clipped * rollouts.advantages)
        # Left out, not multiplied by 0: an ungraded row's estimate must not decide whether the loss is finite.
        loss = -torch.where(rollouts.graded, gain, 0.0).sum() / rollouts.totals.rows
        metrics = ratio_metrics(log_ratio, rollouts.graded, rollouts.group_index, self.eps_low, self.eps_high)
        return ObjectiveOutput(loss=loss, metrics=metrics)
