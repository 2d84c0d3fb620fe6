"""ESPO: a clipped ratio of whole sequences per token of their length (arXiv 2512.03759)."""

from torch import Tensor

from stabledrl.objectives.importance import check_eps, ratio_metrics
from stabledrl.objectives.sequence_ratio import length_normalized_log_ratio, sequence_surrogate
from stabledrl.protocols import Need, Objective
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch


class ESPO(Objective):
    """The loss of ESPO (arXiv 2512.03759, "Principled RL for Diffusion LLMs Emerges from a Sequence-Level
    Perspective"), where a completion is one action:

        loss = -(1 / rows) * sum_i min(rho_i A_i, clip(rho_i) A_i)
        rho_i = exp((ELBO_i - old ELBO_i) / L_i),   clip(rho) = clamp(rho, 1 - eps_low, 1 + eps_high)

    ELBO_i is the bound of the whole completion, the sum over its tokens whatever the estimator's `reduction`; L_i is
    its number of tokens. The gradient goes through rho, log-ratios are limited to +-80.

    The rest of the method is configuration:

    - The estimate is `MonteCarloElbo` with `masking` antithetic: sets of k ~ U{0..L} tokens with their complements. The
      release takes 2 pairs, so 4 draws, and scores old and current policy on the same masks.
    - The KL term is the module's: `kl_estimator` k2, `kl_level` sequence_per_token, coefficient .001 to .01.
    - The release compares a reward with the mean of the others: `leave_one_out` in `stabledrl.advantages`. It takes 8
      updates on a rollout and a learning rate of 3e-6.
    - The release's L is the width of the completion, and it scores what comes after the end; here neither is counted.

    Completions without a reward contribute 0 but count in the mean.

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
            Loss and the metrics of `ratio_metrics`, of the ratios as above.
        """
        log_ratio = length_normalized_log_ratio(current, rollouts)
        gain = sequence_surrogate(log_ratio, rollouts, self.eps_low, self.eps_high)
        metrics = ratio_metrics(log_ratio, rollouts.graded, rollouts.group_index, self.eps_low, self.eps_high)
        return ObjectiveOutput(loss=-gain.sum() / rollouts.totals.rows, metrics=metrics)
