"""Group-relative advantages: how much better a completion did than the others of its prompt.

Shape legend: N rows in any order, G groups of any size.
"""

from typing import Literal

import torch
from torch import Tensor

Baseline = Literal["center", "standardize", "leave_one_out"]
"""What a reward is compared with, see `group_advantages`."""

STD_FLOOR = 1e-4
"""Added to the standard deviation by `standardize`."""


def group_advantages(
    rewards: Tensor, graded: Tensor, group_index: Tensor, num_groups: int, *, baseline: Baseline
) -> Tensor:
    """Compares each reward with those of its own group.

    With r the graded rewards of a group and n their number:

    - `center`: r_i - mean(r), the choice of the method's public release (arXiv 2603.06743);
    - `standardize`: (r_i - mean(r)) / (population std(r) + 1e-4), as in GRPO (arXiv 2402.03300, section 4.1.2);
    - `leave_one_out`: r_i - mean of the other n - 1 rewards (RLOO, arXiv 2402.14740).

    Args:
        rewards: (N,) floating point; NaN or infinite where no reward could be given.
        graded: (N,) bool, False where the reward is missing. A reward that is not finite counts as missing too.
        group_index: (N,) int64 in [0, num_groups), rows in any order.
        num_groups: G; groups without rows are allowed.
        baseline: One of the three above.

    Returns:
        (N,) advantages in the dtype of `rewards`. Exactly 0 for rows without a reward, in groups whose graded rewards
        are all equal, and in groups with fewer than two graded rows.
    """
    graded = graded & rewards.isfinite()
    # Twice the precision, so that a sum over a group neither overflows nor loses small differences of large rewards.
    values = rewards.to(torch.float64).masked_fill(~graded, 0.0)
    count = _group_sum(graded.to(torch.float64), group_index, num_groups).clamp(min=1)
    mean = _group_sum(values, group_index, num_groups) / count
    deviation = values - mean[group_index]
    if baseline == "center":
        advantages = deviation
    elif baseline == "standardize":
        variance = _group_sum(deviation.square().masked_fill(~graded, 0.0), group_index, num_groups) / count
        advantages = deviation / (variance.sqrt() + STD_FLOOR)[group_index]
    else:
        # r_i - (n mean - r_i) / (n - 1), written so that nothing large is subtracted.
        advantages = deviation * (count / (count - 1).clamp(min=1))[group_index]
    flat = zero_variance_groups(rewards, graded, group_index, num_groups)
    return advantages.masked_fill(~graded | flat[group_index], 0.0).to(rewards.dtype)


def zero_variance_groups(rewards: Tensor, graded: Tensor, group_index: Tensor, num_groups: int) -> Tensor:
    """Finds the groups that say nothing about which completion is better.

    Decided by the range: the standard deviation of equal rewards may differ from 0 by rounding.

    Args:
        rewards: (N,) floating point.
        graded: (N,) bool; rewards that are not finite count as missing too.
        group_index: (N,) int64 in [0, num_groups).
        num_groups: G.

    Returns:
        (G,) bool, True where no two graded rewards differ: also for groups with fewer than two graded rows.
    """
    missing = ~(graded & rewards.isfinite())
    bound = torch.full((num_groups,), float("inf"), dtype=rewards.dtype, device=rewards.device)
    lowest = bound.scatter_reduce(0, group_index, rewards.masked_fill(missing, float("inf")), "amin")
    highest = (-bound).scatter_reduce(0, group_index, rewards.masked_fill(missing, -float("inf")), "amax")
    return lowest >= highest


def _group_sum(values: Tensor, group_index: Tensor, num_groups: int) -> Tensor:
    return values.new_zeros(num_groups).index_add(0, group_index, values)
