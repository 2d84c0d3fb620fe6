"""One importance ratio per token: PPO's clipped surrogate over tokens, and what to plot about it.

A token's log-ratio is the difference of its shares of the two estimates, which says something only where both saw the
same corruptions (the need `shared_masks`). Clamp, clip and treatment of NaN are those of `importance`.

Shape legend: N rows, C completion length.
"""

from abc import abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from stabledrl.objectives.importance import LOG_RATIO_LIMIT, check_eps, clamp_log_ratio, clip_log_ratio, ratio_moments
from stabledrl.protocols import Need, Objective
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch


def token_surrogate(
    current: LikelihoodEstimate,
    rollouts: RolloutBatch,
    eps_low: float | None,
    eps_high: float | None,
    *,
    limit: float = LOG_RATIO_LIMIT,
) -> Tensor:
    """The gain of every token under PPO's conditional clip (arXiv 1707.06347, equation 7):

        min(rho A, clip(rho) A),   clip(rho) = clamp(rho, 1 - eps_low, 1 + eps_high)

    Args:
        current: Estimate under the policy being trained; the gradient goes through rho.
        rollouts: The same rows; their estimate under the old policy is of the same corruptions.
        eps_low: The ratio's clip below 1; None, or 1 and above, for no lower bound.
        eps_high: The ratio's clip above 1; None for no upper bound.
        limit: Log-ratios are kept within plus and minus this, at most 80, before exp; the gradient beyond is 0.

    Returns:
        (N, C), float32 (float64 for float64): 0 for tokens that no draw scores and for completions without a reward.
    """
    counted = current.scored.any(dim=1) & rollouts.graded[:, None]
    log_ratio = clamp_log_ratio(current.token_elbo - rollouts.old.token_elbo).clamp(-limit, limit)
    clipped = torch.exp(clip_log_ratio(log_ratio, eps_low, eps_high))
    advantages = rollouts.advantages[:, None]
    # Left out, not multiplied by 0: what is left out must decide neither loss nor gradient.
    return torch.where(counted, torch.minimum(torch.exp(log_ratio) * advantages, clipped * advantages), 0.0)


def token_ratio_metrics(
    current: LikelihoodEstimate, rollouts: RolloutBatch, eps_low: float | None, eps_high: float | None
) -> dict[str, Tensor]:
    """Describes a batch's ratios, over all tokens that a draw scores (at least one), of graded rows or not.

    Args:
        current: Estimate under the policy being trained.
        rollouts: The same rows.
        eps_low: As in `token_surrogate`.
        eps_high: As in `token_surrogate`.

    Returns:
        Detached scalars:

        - `log_ratio_mean`, `log_ratio_std` (population), `log_ratio_max`: of the log-ratios before any clamp;
        - `ratio_mean`, `ratio_std`, `ratio_kurtosis`, `ratio_max`: see `importance.ratio_moments`;
        - `clip_fraction_low`, `clip_fraction_high`: share of tokens below the lower and above the upper bound, which
          is -80 or 80 where unbounded, also where the minimum takes the unclipped side.
    """
    log_ratio = (current.token_elbo - rollouts.old.token_elbo).detach()[current.scored.any(dim=1)]
    clipped = clip_log_ratio(log_ratio, eps_low, eps_high)
    return {
        "log_ratio_mean": log_ratio.mean(),
        "log_ratio_std": log_ratio.std(unbiased=False),
        "log_ratio_max": log_ratio.max(),
        **ratio_moments(log_ratio),
        "clip_fraction_low": (log_ratio < clipped).float().mean(),
        "clip_fraction_high": (log_ratio > clipped).float().mean(),
    }


class TokenRatioObjective(Objective):
    """Base of the methods whose loss is the mean of `token_surrogate` over the update's completion tokens.

    Args:
        eps_low: The ratio's clip below 1; None, or 1 and above, for no lower bound.
        eps_high: The ratio's clip above 1; None for no upper bound.

    Raises:
        UserInputError: A value is not greater than 0.
    """

    needs: frozenset[Need] = frozenset({"elbo", "shared_masks"})
    uses_ratio = True

    @abstractmethod
    def __init__(self, eps_low: float | None, eps_high: float | None) -> None:
        """Every method states the clip it is published with."""
        check_eps(eps_low, eps_high)
        self.eps_low = eps_low
        self.eps_high = eps_high

    @override
    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        """Computes the batch's share of the update's loss.

        Args:
            current: Estimate under the policy being trained, with gradient.
            rollouts: The same rows' rollouts.
            group_log_normalizer: Has no effect, rows do not depend on each other.

        Returns:
            Loss and the metrics of `token_ratio_metrics`.
        """
        gain = token_surrogate(current, rollouts, self.eps_low, self.eps_high)
        metrics = token_ratio_metrics(current, rollouts, self.eps_low, self.eps_high)
        return ObjectiveOutput(loss=-gain.sum() / rollouts.totals.tokens, metrics=metrics)
