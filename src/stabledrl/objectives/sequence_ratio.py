"""One importance ratio per sequence, per token of its length: PPO's clipped surrogate over sequences.

Shape legend: N rows.
"""

import torch
from torch import Tensor

from stabledrl.objectives.importance import clamp_log_ratio, clip_log_ratio
from stabledrl.types import LikelihoodEstimate, RolloutBatch


def length_normalized_log_ratio(current: LikelihoodEstimate, rollouts: RolloutBatch) -> Tensor:
    """The difference of the whole bounds (sums over tokens, whatever the estimator's reduction), divided by the length.

    Args:
        current: N rows under the policy being trained.
        rollouts: The same rows.

    Returns:
        (N,), differentiable in `current`.
    """
    difference = current.token_elbo.sum(dim=1) - rollouts.old.token_elbo.sum(dim=1)
    return difference / rollouts.sequences.lengths


def sequence_surrogate(
    log_ratio: Tensor, rollouts: RolloutBatch, eps_low: float | None, eps_high: float | None
) -> Tensor:
    """The gain of every completion under PPO's conditional clip (arXiv 1707.06347, equation 7):

        min(rho A, clip(rho) A),   clip(rho) = clamp(rho, 1 - eps_low, 1 + eps_high)

    Args:
        log_ratio: (N,) log of rho; the gradient goes through it, and is 0 beyond +-80.
        rollouts: The same rows.
        eps_low: The ratio's clip below 1; None, or 1 and above, for no lower bound.
        eps_high: The ratio's clip above 1; None for no upper bound.

    Returns:
        (N,), float32 (float64 for float64): 0 for completions without a reward.
    """
    # Left out before exp and after it, not multiplied by 0: what is left out must decide neither loss nor gradient.
    log_ratio = torch.where(rollouts.graded, log_ratio, 0.0)
    ratio = torch.exp(clamp_log_ratio(log_ratio))
    clipped = torch.exp(clip_log_ratio(log_ratio, eps_low, eps_high))
    gain = torch.minimum(ratio * rollouts.advantages, clipped * rollouts.advantages)
    return torch.where(rollouts.graded, gain, 0.0)
