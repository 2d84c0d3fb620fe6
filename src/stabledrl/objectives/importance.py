"""Importance ratios in log space: clamp, clip, self-normalise, and what to plot about them.

Ratios between likelihood estimates have a long tail: e^1000 and e^-1000 occur. So every step works on log-ratios, in
float32 at least, and exponentiates last. A log-ratio that is NaN stays NaN in whatever depends on it.

Shape legend: N rows in any order, G groups of any size.
"""

import math

import torch
from torch import Tensor

from stabledrl.errors import UserInputError

LOG_RATIO_LIMIT = 80.0
"""Largest magnitude of a log-ratio before exp: float32 overflows above 88.7."""


def check_eps(eps_low: float | None, eps_high: float | None) -> None:
    """Refuses clip widths that leave no interval around 1.

    Args:
        eps_low: Ratios are kept at or above 1 - eps_low; None for unbounded.
        eps_high: Ratios are kept at or below 1 + eps_high; None for unbounded.

    Raises:
        UserInputError: A width is not a positive number.
    """
    for name, value in (("eps_low", eps_low), ("eps_high", eps_high)):
        if value is not None and not value > 0:
            raise UserInputError(f"{name} {value} must be greater than 0, or null for no bound on that side")


def clamp_log_ratio(log_ratio: Tensor) -> Tensor:
    """Limits log-ratios to +-80, so that their exp is finite; the gradient beyond is 0.

    Args:
        log_ratio: Floating point, any shape.

    Returns:
        Same shape, float32 (float64 for float64).
    """
    return clip_log_ratio(log_ratio, None, None)


def clip_log_ratio(log_ratio: Tensor, eps_low: float | None, eps_high: float | None) -> Tensor:
    """Clips ratios to [1 - eps_low, 1 + eps_high] in log space, whatever the sign of an advantage.

    Source: arXiv 2603.06743, unconditional clipping.

    Args:
        log_ratio: Floating point, any shape.
        eps_low: At least 0. None, or 1 and above, for no lower bound.
        eps_high: At least 0. None for no upper bound.

    Returns:
        Same shape, float32 (float64 for float64), within +-80 also where unbounded; the gradient beyond a bound is 0.
    """
    low, high = _log_bounds(eps_low, eps_high)
    return _at_least_float32(log_ratio).clamp(low, high)


def self_normalize(log_ratio: Tensor, group_index: Tensor) -> Tensor:
    """Turns the log-ratios of whole groups into weights: each ratio divided by the sum over its own group.

    Scope: the normaliser is the sum over the rows that are passed. For a group of which other rows lie in another
    batch or on another rank use `group_log_sum_exp` over all of them instead.

    Args:
        log_ratio: (N,) floating point, of any finite size: only differences within a group matter.
        group_index: (N,) int64, any ids.

    Returns:
        (N,) weights that sum to 1 per group, float32 (float64 for float64). A NaN makes its own group NaN, no other.
    """
    ids, index = torch.unique(group_index, return_inverse=True)
    log_ratio = _at_least_float32(log_ratio)
    # Relative to the largest of the group: a log-normaliser of 1000 would cost float32 the digits after the point.
    ratio = torch.exp(log_ratio - _group_max(log_ratio, index, len(ids))[index])
    return ratio / _group_sum(ratio, index, len(ids))[index]


def group_log_sum_exp(log_ratio: Tensor, group_index: Tensor, num_groups: int) -> Tensor:
    """Log of the sum of each group's ratios.

    Args:
        log_ratio: (N,) floating point.
        group_index: (N,) int64 in [0, num_groups).
        num_groups: G.

    Returns:
        (G,) float32 (float64 for float64); -inf for a group without rows.
    """
    log_ratio = _at_least_float32(log_ratio)
    highest = _group_max(log_ratio, group_index, num_groups)
    highest = highest.masked_fill(highest.isinf(), 0.0)  # inf - inf would be NaN for empty groups and ratios of 0
    return highest + _group_sum(torch.exp(log_ratio - highest[group_index]), group_index, num_groups).log()


def effective_sample_size(log_ratio: Tensor, graded: Tensor, group_index: Tensor) -> Tensor:
    """How many equally weighted rows a group's weights are worth: 1 / sum w^2, averaged over groups (Kish 1965).

    Args:
        log_ratio: (N,) floating point; clip it first, if the weights are clipped.
        graded: (N,) bool, rows that have a weight.
        group_index: (N,) int64, any ids. Only rows that are passed count: a part of a group is worth at most its rows.

    Returns:
        Scalar, float32 (float64 for float64): between 1 and the size of a group; a group without graded rows counts 0.
    """
    ids, index = torch.unique(group_index, return_inverse=True)
    weights = self_normalize(log_ratio[graded], index[graded])
    squares = _group_sum(weights.square(), index[graded], len(ids))
    return torch.where(squares == 0, 0.0, 1 / squares).mean()


def ratio_moments(log_ratio: Tensor) -> dict[str, Tensor]:
    """Describes the spread of ratios before any clip (log-ratios beyond +-80 count as 80).

    Args:
        log_ratio: (M,) floating point, M at least 1.

    Returns:
        Detached float64 scalars: `ratio_mean`, `ratio_std` (population), `ratio_max` and `ratio_kurtosis`, the fourth
        central moment over the squared variance: 3 for a Gaussian, up to M for a single outlier, 0 where all ratios are
        equal.
    """
    # Twice the precision: the fourth power of e^80 is no float32.
    ratio = torch.exp(clamp_log_ratio(log_ratio.detach()).double())
    deviation = ratio - ratio.mean()
    variance = deviation.square().mean()
    kurtosis = deviation.pow(4).mean() / variance.square()
    return {
        "ratio_mean": ratio.mean(),
        "ratio_std": variance.sqrt(),
        "ratio_max": ratio.max(),
        "ratio_kurtosis": torch.where(ratio.max() == ratio.min(), 0.0, kurtosis),
    }


def ratio_metrics(
    log_ratio: Tensor, graded: Tensor, group_index: Tensor, eps_low: float | None, eps_high: float | None
) -> dict[str, Tensor]:
    """Describes a batch's importance ratios.

    Args:
        log_ratio: (N,) before any clip or clamp, N at least 1.
        graded: (N,) bool.
        group_index: (N,) int64, any ids.
        eps_low: As in `clip_log_ratio`.
        eps_high: As in `clip_log_ratio`.

    Returns:
        Detached scalars. All but the last are over all rows, graded or not, so that they always exist:

        - `log_ratio_mean`, `log_ratio_std` (population), `log_ratio_max`: of the log-ratios as they came;
        - `ratio_mean`, `ratio_std`, `ratio_kurtosis`, `ratio_max`: see `ratio_moments`;
        - `clip_fraction_low`, `clip_fraction_high`: share of rows below the lower and above the upper bound, which is
          -80 or 80 where unbounded;
        - `effective_sample_size`: of the clipped ratios, in rows.
    """
    log_ratio = _at_least_float32(log_ratio.detach())
    low, high = _log_bounds(eps_low, eps_high)
    return {
        "log_ratio_mean": log_ratio.mean(),
        "log_ratio_std": log_ratio.std(unbiased=False),
        "log_ratio_max": log_ratio.max(),
        **ratio_moments(log_ratio),
        "clip_fraction_low": (log_ratio < low).float().mean(),
        "clip_fraction_high": (log_ratio > high).float().mean(),
        "effective_sample_size": effective_sample_size(log_ratio.clamp(low, high), graded, group_index),
    }


def _log_bounds(eps_low: float | None, eps_high: float | None) -> tuple[float, float]:
    low = -LOG_RATIO_LIMIT if eps_low is None or eps_low >= 1 else math.log1p(-eps_low)
    high = LOG_RATIO_LIMIT if eps_high is None else math.log1p(eps_high)
    return max(low, -LOG_RATIO_LIMIT), min(high, LOG_RATIO_LIMIT)


def _at_least_float32(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _group_sum(values: Tensor, group_index: Tensor, num_groups: int) -> Tensor:
    return values.new_zeros(num_groups).index_add(0, group_index, values)


def _group_max(values: Tensor, group_index: Tensor, num_groups: int) -> Tensor:
    # Detached: it cancels in every result, so it carries no gradient.
    lowest = values.new_full((num_groups,), -float("inf"))
    return lowest.scatter_reduce(0, group_index, values.detach(), "amax")
