"""Importance ratios in log space: clamp, clip, self-normalise. Float32 throughout, finite for any finite log-ratio."""

import math

import torch
from torch import Tensor

from stabledrl.errors import UserInputError

MAX_LOG_RATIO = 80.0
"""Log-ratios are clamped to +-80: float32's exp overflows above 88.7."""


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    """Clamps log-ratios to +-80 in float32; the gradient is 0 beyond. NaN stays NaN."""
    return log_ratio.to(torch.float32).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def log_bounds(eps_low: float | None, eps_high: float | None) -> tuple[float, float]:
    """Logarithms of 1 - eps_low and 1 + eps_high; an absent bound is the clamp of +-80.

    Args:
        eps_low: Distance of the lower bound from 1; None, or 1 and more, is no lower bound.
        eps_high: Distance of the upper bound from 1; None is no upper bound.

    Returns:
        Lower and upper bound of the log-ratio.
    """
    low = -MAX_LOG_RATIO if eps_low is None or eps_low >= 1 else math.log1p(-eps_low)
    high = MAX_LOG_RATIO if eps_high is None else min(MAX_LOG_RATIO, math.log1p(eps_high))
    return low, high


def check_eps(eps_low: float | None, eps_high: float | None) -> None:
    """Refuses bounds that are not positive.

    Raises:
        UserInputError: A bound is 0, negative or not finite.
    """
    for name, value in (("eps_low", eps_low), ("eps_high", eps_high)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UserInputError(f"{name} {value} must be a finite number above 0, or null for no bound")


def clip_log_ratio(log_ratio: Tensor, eps_low: float | None, eps_high: float | None) -> Tensor:
    """Clips importance ratios to [1 - eps_low, 1 + eps_high], in log space and whatever the advantage.

    Args:
        log_ratio: Log-ratios, any shape.
        eps_low: Distance of the lower bound from 1; None, or 1 and more, is no lower bound.
        eps_high: Distance of the upper bound from 1; None is no upper bound.

    Returns:
        float32 log of the clipped ratios, same shape.
    """
    low, high = log_bounds(eps_low, eps_high)
    return log_ratio.to(torch.float32).clamp(low, high)


def group_log_sum_exp(log_ratio: Tensor, group_index: Tensor, num_groups: int) -> Tensor:
    """Log of every group's sum of ratios.

    Args:
        log_ratio: (N,) log-ratios.
        group_index: (N,) int64 in [0, num_groups).
        num_groups: G.

    Returns:
        (G,) float32; -inf for a group without rows.
    """
    values = log_ratio.to(torch.float32)
    highest = values.new_full((num_groups,), -math.inf).scatter_reduce(0, group_index, values, "amax")
    shift = torch.where(highest.isinf(), torch.zeros_like(highest), highest)
    sums = values.new_zeros(num_groups).index_add(0, group_index, (values - shift[group_index]).exp())
    return sums.log() + shift


def self_normalize(log_ratio: Tensor, group_index: Tensor) -> Tensor:
    """Weights proportional to the ratios that sum to 1 within each group: a softmax per group.

    Its scope is the rows it is given: a group that is split over batches needs the sum over all of it first.

    Args:
        log_ratio: (N,) log-ratios.
        group_index: (N,) int64 group ids, any values, any order.

    Returns:
        (N,) float32.
    """
    ids, index = group_index.unique(return_inverse=True)
    log_sum = group_log_sum_exp(log_ratio, index, len(ids))
    return (log_ratio.to(torch.float32) - log_sum[index]).exp()


def effective_sample_size(log_ratio: Tensor, group_index: Tensor) -> Tensor:
    """Mean over groups of 1 / sum of squared self-normalised weights: from 1 (one row owns its group) to the group's size.

    Args:
        log_ratio: (N,) log of the ratios that weigh the rows.
        group_index: (N,) int64 group ids.

    Returns:
        Scalar float32.
    """
    ids, index = group_index.unique(return_inverse=True)
    squares = self_normalize(log_ratio, group_index).square()
    return (1 / squares.new_zeros(len(ids)).index_add(0, index, squares)).mean()


@torch.no_grad()
def ratio_metrics(
    log_ratio: Tensor, group_index: Tensor, eps_low: float | None, eps_high: float | None
) -> dict[str, Tensor]:
    """What to plot of importance ratios.

    Args:
        log_ratio: (N,) raw log-ratios, at least one.
        group_index: (N,) int64 group ids.
        eps_low: Lower bound, see `clip_log_ratio`.
        eps_high: Upper bound.

    Returns:
        `log_ratio_mean`, `log_ratio_std` (population), `log_ratio_max` before the clip; `clip_fraction_low` and
        `clip_fraction_high`, the shares of rows beyond each bound; `effective_sample_size` of the clipped ratios.
    """
    values = log_ratio.to(torch.float32)
    low, high = log_bounds(eps_low, eps_high)
    return {
        "log_ratio_mean": values.mean(),
        "log_ratio_std": values.std(unbiased=False),
        "log_ratio_max": values.max(),
        "clip_fraction_low": (values < low).float().mean(),
        "clip_fraction_high": (values > high).float().mean(),
        "effective_sample_size": effective_sample_size(values.clamp(low, high), group_index),
    }
