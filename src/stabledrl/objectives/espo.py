"""ESPO: a clipped ratio of whole sequences per token of their length (arXiv 2512.03759)."""

from stabledrl.objectives.sequence_ratio import SequenceRatioObjective


class ESPO(SequenceRatioObjective):
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

    def __init__(self, eps_low: float | None = 0.2, eps_high: float | None = 0.2) -> None:
        super().__init__(eps_low, eps_high)
