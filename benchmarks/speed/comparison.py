"""What a benchmark is: ours and a baseline that compute the same, the check that they do, and how both are measured."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.speed.memory import peak_bytes


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two ways to the same result.

    Attributes:
        id: As in `python -m benchmarks --only`.
        case: Which of the benchmark's settings this is.
        ours: Runs the package's way.
        baseline: Runs the plain way.
        check: Raises AssertionError unless both give the same result; called before anything is measured.
        gate: Ratio to reach; None where the ratio is for information.
        goal: Ratio to hope for.
        rounds: How often both are measured, in turns.
        memory: Compare the peak of live tensor bytes instead of the CPU time.
    """

    id: str
    case: str
    ours: Callable[[], Any]
    baseline: Callable[[], Any]
    check: Callable[[], None]
    gate: float | None = None
    goal: float | None = None
    rounds: int = 3
    memory: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a comparison found; `ratio` is baseline over ours, of the lowest measurements.

    Process time cannot be too low, but other processes that share caches and memory make it too high: the lowest of
    several is the least disturbed. `ratio_median` is the same of the medians.
    """

    id: str
    case: str
    ratio: float
    ours: float
    baseline: float
    unit: str
    ratio_median: float
    ours_median: float
    baseline_median: float
    rounds: int
    gate: float | None
    goal: float | None


def measure(comparison: Comparison) -> Result:
    """Checks that both ways agree, which runs both of them once, then measures them in turns."""
    comparison.check()
    ways = (comparison.ours, comparison.baseline)
    if comparison.memory:
        found = [[float(peak_bytes(way))] for way in ways]
    else:
        found = [[], []]
        for _ in range(comparison.rounds):
            for way, values in zip(ways, found):
                values.append(_cpu_seconds(way))
    ours, baseline = found
    return Result(
        id=comparison.id,
        case=comparison.case,
        ratio=_round(min(baseline) / min(ours)),
        ours=_round(min(ours)),
        baseline=_round(min(baseline)),
        unit="bytes" if comparison.memory else "CPU seconds",
        ratio_median=_round(median(baseline) / median(ours)),
        ours_median=_round(median(ours)),
        baseline_median=_round(median(baseline)),
        rounds=len(ours),
        gate=comparison.gate,
        goal=comparison.goal,
    )


def _cpu_seconds(way: Callable[[], Any]) -> float:
    started = time.process_time()
    way()
    return time.process_time() - started


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def missed(result: Result) -> bool:
    """Whether the ratio is below its gate."""
    return result.gate is not None and result.ratio < result.gate


def table(results: list[Result]) -> str:
    """The results with what they have to reach."""
    rows = ["| id | case | ratio | of medians | gate | goal | ours | baseline | unit |", "|" + " --- |" * 9]
    for found in results:
        gate, goal = ("-" if bound is None else f"{bound:.3g}" for bound in (found.gate, found.goal))
        verdict = " MISSED" if missed(found) else ""
        rows.append(
            f"| {found.id} | {found.case} | {found.ratio:.2f}{verdict} | {found.ratio_median:.2f} | {gate} | {goal} "
            f"| {found.ours:.4g} | {found.baseline:.4g} | {found.unit} |"
        )
    return "\n".join(rows)
