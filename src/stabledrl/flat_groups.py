"""What becomes of groups whose rewards are all equal, which teach nothing (DAPO, arXiv 2503.14476, section 3.2)."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from stabledrl.advantages import zero_variance_groups
from stabledrl.types import RolloutBatch

FlatGroups = Literal["keep", "drop", "resample"]
"""`keep` counts them in the update's means; `drop` leaves them out of it; `resample` draws their completions anew."""


def flat_rows(rewards: Tensor, group_size: int) -> Tensor:
    """The rows of groups whose graded rewards are all equal.

    Args:
        rewards: (N,) float32, NaN where no reward could be given; whole groups, one after another.
        group_size: Completions per group.

    Returns:
        (R,) int64, in order; whole groups.
    """
    groups = len(rewards) // group_size
    index = torch.arange(groups).repeat_interleave(group_size)
    return zero_variance_groups(rewards, rewards.isfinite(), index, groups)[index].nonzero()[:, 0]


def drop_flat_groups(rollouts: RolloutBatch) -> RolloutBatch:
    """Leaves flat groups out of all that an update takes means over; their rows stay, as rows that are not graded.

    Where all are flat nothing is left out: such a rollout makes no update anyhow.

    Args:
        rollouts: N rows, whole groups.

    Returns:
        N rows. Groups that teach are numbered anew, and the totals count them alone.
    """
    groups = rollouts.totals.groups
    teaches = ~zero_variance_groups(rollouts.rewards, rollouts.graded, rollouts.group_index, groups)
    if teaches.all() or not teaches.any():
        return rollouts
    number = (teaches.cumsum(0) - 1).clamp_min(0)  # that of a dropped group is read by no one
    rows = teaches[rollouts.group_index]
    totals = replace(
        rollouts.totals,
        rows=int(rows.sum()),
        groups=int(teaches.sum()),
        tokens=int(rollouts.sequences.lengths[rows].sum()),
    )
    return replace(rollouts, graded=rollouts.graded & rows, group_index=number[rollouts.group_index], totals=totals)
