"""Group-relative advantages: a completion's reward against those of its own prompt's group."""

from typing import Literal

import torch
from torch import Tensor

Baseline = Literal["center", "standardize", "leave_one_out"]

_STD_FLOOR = 1e-4


def group_advantages(
    rewards: Tensor, graded: Tensor, group_index: Tensor, num_groups: int, *, baseline: Baseline
) -> Tensor:
    """Compares every reward with its group.

    - `center`: r - mean (StableDRL's release).
    - `standardize`: (r - mean) / (population std + 1e-4) (GRPO, arXiv 2402.03300, section 4.1.2).
    - `leave_one_out`: r - mean of the group's others (RLOO, arXiv 2402.14740).

    Args:
        rewards: (N,) rewards; whatever stands where `graded` is False is not looked at.
        graded: (N,) bool.
        group_index: (N,) int64 in [0, num_groups), in any order.
        num_groups: G.
        baseline: Which comparison.

    Returns:
        (N,) float32: exactly 0 where not graded, and in groups whose graded rewards are all equal or fewer than two.
    """
    values = torch.where(graded, rewards, torch.zeros_like(rewards)).to(torch.float32)
    count = _sums(graded.to(torch.float32), group_index, num_groups)
    mean = _sums(values, group_index, num_groups) / count.clamp_min(1)
    centred = torch.where(graded, values - mean[group_index], torch.zeros_like(values))
    if baseline == "standardize":
        variance = _sums(centred.square(), group_index, num_groups) / count.clamp_min(1)
        centred = centred / (variance.sqrt() + _STD_FLOOR)[group_index]
    elif baseline == "leave_one_out":
        # r - (sum - r) / (n - 1) = (r - mean) * n / (n - 1)
        centred = centred * (count / (count - 1).clamp_min(1))[group_index]
    # By range, not by std > 0: the mean of equal numbers need not equal them in floating point.
    flat = zero_variance_groups(rewards, graded, group_index, num_groups)
    return centred.masked_fill(flat[group_index], 0.0)


def zero_variance_groups(rewards: Tensor, graded: Tensor, group_index: Tensor, num_groups: int) -> Tensor:
    """Groups whose graded rewards are all equal, or fewer than two: they say nothing about what is better.

    Args:
        rewards: (N,) rewards.
        graded: (N,) bool.
        group_index: (N,) int64 in [0, num_groups).
        num_groups: G.

    Returns:
        (G,) bool.
    """
    values = rewards.to(torch.float32)
    highest = values.new_full((num_groups,), float("-inf"))
    lowest = values.new_full((num_groups,), float("inf"))
    highest.scatter_reduce_(0, group_index[graded], values[graded], "amax")
    lowest.scatter_reduce_(0, group_index[graded], values[graded], "amin")
    return highest <= lowest


def _sums(values: Tensor, group_index: Tensor, num_groups: int) -> Tensor:
    return values.new_zeros(num_groups).index_add_(0, group_index, values)
