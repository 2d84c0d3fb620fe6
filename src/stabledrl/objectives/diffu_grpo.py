"""diffu-GRPO: GRPO with one ratio per token of a mean-field likelihood (d1, arXiv 2504.12216)."""

from stabledrl.objectives.token_ratio import TokenRatioObjective


class DiffuGRPO(TokenRatioObjective):
    """The clipped policy-gradient loss of d1 (arXiv 2504.12216, "d1: Scaling Reasoning in Diffusion Large Language
    Models via Reinforcement Learning"), with one ratio per token:

        loss = -(1 / tokens) * sum_i sum_k min(rho_ik A_i, clip(rho_ik) A_i)
        rho_ik = exp(l_ik - old l_ik),   clip(rho) = clamp(rho, 1 - eps_low, 1 + eps_high)

    i runs over the completions of an update, k over the tokens of one, and the gradient goes through rho. l_ik is the
    log-probability of token k where the whole completion and 15 % of the prompt are masked: the estimator `MeanField`.
    It takes the tokens for independent of each other, so rho is a proxy, not the ratio of two policies. Old and current
    estimate must see the same masks. With another estimator that shares masks, l_ik is the token's share of the bound.

    What the paper leaves open or states differently from its release:

    - The divisor is the number of completion tokens, as in the release (which counts those of a device, here those of
      the update: every token weighs the same); the paper's formula has the mean over tokens, then over completions.
    - A = r - mean of the group without division by the deviation: `center` in `stabledrl.advantages`.
    - The KL term (k3 per token, .04) is the module's `kl_coefficient`, with `kl_level` token.
    - The release draws prompt masks for every inner update and keeps an old estimate for each; here one set of masks
      serves all updates on a rollout. More `draws` of the estimator average over more masks.

    Completions without a reward contribute 0, but their tokens count in the divisor.

    Args:
        eps_low: The ratio's clip below 1; None, or 1 and above, for no lower bound.
        eps_high: The ratio's clip above 1; None for no upper bound.

    Raises:
        UserInputError: A value is not greater than 0.
    """

    def __init__(self, eps_low: float | None = 0.5, eps_high: float | None = 0.5) -> None:
        super().__init__(eps_low, eps_high)
