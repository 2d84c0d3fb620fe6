"""Counter-based random numbers: a value depends on its key alone, never on global state, batch shape or rank.

Every row of a rollout has a key made of (seed, rollout index, prompt id, sample index, rollback count); every draw adds
its purpose, step and position. So a sample is the same whatever the batch size, the row order, the micro-batching or
the number of processes, and a resumed run draws what an uninterrupted one would have drawn.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) in wrapping int64 arithmetic.
"""

import enum

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


class Purpose(enum.IntEnum):
    """What a draw is for. Values are part of a run's identity: append, never renumber."""

    TOKEN = 0
    REMASKING = 1
    MASK_COUNT = 2
    MASK_RANK = 3
    MASK_BLOCK = 4
    MASK_CONTEXT = 5
    DATA = 6
    DEMONSTRATION = 7
    STRESS = 8
    ADAPTER_DROPOUT = 9


def _logical_shift(value: Tensor, bits: int) -> Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _logical_shift(value, 30)) * _FIRST
    value = (value ^ _logical_shift(value, 27)) * _SECOND
    return value ^ _logical_shift(value, 31)


def fold(key: Tensor, value: Tensor | int) -> Tensor:
    """Derives a new key from a key and a counter.

    Args:
        key: int64, any shape.
        value: int64 tensor that broadcasts against `key`, or an integer.

    Returns:
        int64 keys, of the broadcast shape.
    """
    # torch.full makes the number on the device; copying it there would wait for the stream at every denoising step.
    counter = value if isinstance(value, Tensor) else torch.full((), value, dtype=torch.int64, device=key.device)
    return _mix(key ^ _mix((counter + 1) * _GOLDEN))


def row_keys(seed: int, rollout_index: int, prompt_id: Tensor, sample_index: Tensor, rollback_count: int = 0) -> Tensor:
    """Makes the key of each row of a rollout.

    Args:
        seed: Seed of the run.
        rollout_index: Number of the rollout within the run.
        prompt_id: (N,) int64, identity of each row's prompt in its data set.
        sample_index: (N,) int64, number of the row within its group.
        rollback_count: How often the run has been rolled back, so that a repeated rollout draws anew.

    Returns:
        (N,) int64.
    """
    key = torch.zeros_like(prompt_id, dtype=torch.int64)
    for part in (seed, rollback_count, rollout_index, prompt_id, sample_index):
        key = fold(key, part)
    return key


def uniforms(keys: Tensor, purpose: Purpose, step: int, positions: Tensor | int) -> Tensor:
    """Draws one uniform number per row and position.

    Args:
        keys: (N,) int64 row keys.
        purpose: What the numbers are for.
        step: Counter within the purpose (denoising step, update, Monte-Carlo draw).
        positions: Number of positions, or int64 positions of shape (M,) or (N, M).

    Returns:
        (N, M) float64 in [0, 1), on the device of `keys`.
    """
    if isinstance(positions, int):
        positions = torch.arange(positions, device=keys.device)
    bits = fold(fold(fold(keys, int(purpose)), step)[:, None], positions)
    return _logical_shift(bits, 11).to(torch.float64) * 2.0**-53
