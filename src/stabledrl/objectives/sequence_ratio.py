"""One importance ratio per sequence: PPO's clipped surrogate over sequences.

Shape legend: N rows.
"""

from abc import abstractmethod

import torch
from torch import Tensor
from typing_extensions import override

from stabledrl.objectives.importance import check_eps, clamp_log_ratio, clip_log_ratio, ratio_metrics
from stabledrl.protocols import Need, Objective
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch


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


class SequenceRatioObjective(Objective):
    """Base of the methods whose loss is the mean of `sequence_surrogate` over the update's completions.

    Args:
        eps_low: The ratio's clip below 1; None, or 1 and above, for no lower bound.
        eps_high: The ratio's clip above 1; None for no upper bound.

    Raises:
        UserInputError: A value is not greater than 0.
    """

    needs: frozenset[Need] = frozenset({"elbo"})
    uses_ratio = True

    @abstractmethod
    def __init__(self, eps_low: float | None, eps_high: float | None) -> None:
        """Every method states the clip it is published with."""
        check_eps(eps_low, eps_high)
        self.eps_low = eps_low
        self.eps_high = eps_high

    def log_ratio(self, current: LikelihoodEstimate, rollouts: RolloutBatch) -> Tensor:
        """(N,) log of every completion's ratio, differentiable in `current`."""
        return length_normalized_log_ratio(current, rollouts)

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
            Loss and the metrics of `ratio_metrics`. There, a row counts as clipped when its ratio lies outside the
            interval, also where the minimum takes the unclipped side.
        """
        log_ratio = self.log_ratio(current, rollouts)
        gain = sequence_surrogate(log_ratio, rollouts, self.eps_low, self.eps_high)
        metrics = ratio_metrics(log_ratio, rollouts.graded, rollouts.group_index, self.eps_low, self.eps_high)
        return ObjectiveOutput(loss=-gain.sum() / rollouts.totals.rows, metrics=metrics)
