"""GDPO: the clipped ratio of whole sequences on a quadrature estimate of the ELBO (arXiv 2510.08554)."""

from stabledrl.objectives.sequence_ratio import SequenceRatioObjective


class GDPO(SequenceRatioObjective):
    """The loss of GDPO (arXiv 2510.08554, "Improving Reasoning for Diffusion Language Models via Group Diffusion Policy
    Optimization"):

        loss = -(1 / rows) * sum_i min(rho_i A_i, clip(rho_i) A_i)
        rho_i = exp((ELBO_i - old ELBO_i) / L_i),   clip(rho) = clamp(rho, 1 - eps_low, 1 + eps_high)

    ELBO_i is the bound of the whole completion, the sum over its tokens whatever the estimator's `reduction`; L_i is
    its number of tokens. The gradient goes through rho, log-ratios are limited to +-80.

    What is GDPO's own is the estimate, `MonteCarloElbo` with `masking` quadrature: `draws` fixed shares of masked
    tokens, 2 in the paper. The paper takes A = r - mean (`center` in `stabledrl.advantages`) and writes a KL term, the
    module's `kl_coefficient`, here 0.

    (ours) The authors' formula has the ratio of whole sequences, and 1 / L_i in front of the minimum. That ratio leaves
    the clip's interval as soon as the bound moves by a fifth of a nat over all tokens together, so here the length
    divides the exponent.

    Completions without a reward contribute 0 but count in the mean.

    Args:
        eps_low: The ratio's clip below 1; None, or 1 and above, for no lower bound.
        eps_high: The ratio's clip above 1; None for no upper bound.

    Raises:
        UserInputError: A value is not greater than 0.
    """

    def __init__(self, eps_low: float | None = 0.2, eps_high: float | None = 0.2) -> None:
        super().__init__(eps_low, eps_high)
