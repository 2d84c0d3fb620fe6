"""Coupled-GRPO: one clipped ratio per token, each token scored in one view of a pair (arXiv 2506.20639)."""

from stabledrl.objectives.token_ratio import TokenRatioObjective


class CoupledGRPO(TokenRatioObjective):
    """The loss of coupled-GRPO (arXiv 2506.20639, "DiffuCoder: Understanding and Improving Masked Diffusion Models for
    Code Generation"):

        loss = -(1 / tokens) * sum_i sum_k min(rho_ik A_i, clip(rho_ik) A_i)
        rho_ik = exp(l_ik - old l_ik),   clip(rho) = clamp(rho, 1 - eps_low, 1 + eps_high)

    i runs over the completions of an update, k over the tokens of one, and the gradient goes through rho. l_ik is the
    token's share of the estimate, `MonteCarloElbo` with `masking` coupled and 3 draws: with a share t of the tokens
    masked in one view and the others in its complement,

        l_ik = 1/2 (log p given nothing + log p / t or log p / (1 - t), from the view that masks the token).

    Old and current estimate must see the same masks. With another estimator that shares masks, l_ik is the token's
    share of that one.

    - Paper: A standardised within the group. The release has the mean of the others for a baseline instead,
      `leave_one_out` in `stabledrl.advantages`, and does not divide by the deviation in its recipe.
    - The divisor is the number of completion tokens of the update (the release counts those of a device).
    - The release draws masks for every inner update and keeps an old estimate for each; here one set of masks serves
      all updates on a rollout.
    - The KL term, where one is wanted, is the module's `kl_coefficient` with `kl_level` token; here 0.

    Completions without a reward contribute 0, but their tokens count in the divisor.

    Args:
        eps_low: The ratio's clip below 1; None, or 1 and above, for no lower bound.
        eps_high: The ratio's clip above 1; None for no upper bound.

    Raises:
        UserInputError: A value is not greater than 0.
    """

    def __init__(self, eps_low: float | None = 0.2, eps_high: float | None = 0.2) -> None:
        super().__init__(eps_low, eps_high)
