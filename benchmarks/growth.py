"""How time and memory of a step grow with completion length, group size and vocabulary: JSON lines and a picture.

python -m benchmarks.growth --figure docs/images/growth.png > benchmarks/results/growth.jsonl

A step is a rollout, the old policy's estimate and two updates, of a small full-attention model with random weights
whose completions never end; a fixed share of the completion is decided at each denoising step. Time is CPU time on one
thread, the lower of two runs; memory the peak of live tensor bytes, weights not counted. An exponent is the slope of a
straight line through the logarithms.
"""

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.speed.memory import peak_bytes
from benchmarks.speed.models import make_keys, make_policy, make_prompts
from benchmarks.speed.updates import update_policy
from stabledrl.samplers import SemiAutoregressiveSampler
from stabledrl.types import Completions

PROMPT, BLOCK, TOKENS_PER_STEP = 32, 32, 4
BASE = {"completion_length": 64, "group_size": 4, "vocabulary_size": 1024}
SWEEPS: dict[str, list[int]] = {
    "completion_length": [64, 128, 256, 512, 1024],
    "group_size": [2, 4, 8, 16, 32, 64],
    "vocabulary_size": [1024, 4096, 16384, 65536, 131072],
}
MEASURED = {
    "rollout_seconds": "CPU seconds",
    "update_seconds": "CPU seconds",
    "rollout_bytes": "peak memory in MB",
    "update_bytes": "peak memory in MB",
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A step's cost; `update_*` are of the old policy's estimate and the two updates."""

    sweep: str
    value: int
    rollout_seconds: float
    update_seconds: float
    rollout_bytes: int
    update_bytes: int


def measure(sweep: str, value: int, *, repeats: int = 2) -> Point:
    """Runs the step with one size changed."""
    sizes = {**BASE, sweep: value}
    policy = make_policy(hidden_size=64, layers=2, vocabulary_size=sizes["vocabulary_size"], ends=False)
    length, rows = sizes["completion_length"], sizes["group_size"]
    sampler = SemiAutoregressiveSampler(length, BLOCK, length // TOKENS_PER_STEP)
    prompts, keys = make_prompts(policy, rows, PROMPT), make_keys(rows)
    mask = torch.ones_like(prompts, dtype=torch.bool)

    def rollout() -> Completions:
        return sampler(policy, prompts, mask, vocabulary=policy.vocabulary, row_keys=keys, temperature=1.0)

    completions, trained = rollout(), copy.deepcopy(policy)

    def update() -> list[Tensor]:
        return update_policy(trained, prompts, keys, completions, groups=1)

    return Point(
        sweep=sweep,
        value=value,
        rollout_seconds=min(_cpu_seconds(rollout) for _ in range(repeats)),
        update_seconds=min(_cpu_seconds(update) for _ in range(repeats)),
        rollout_bytes=peak_bytes(rollout),
        update_bytes=peak_bytes(update),
    )


def _cpu_seconds(run: Callable[[], Any]) -> float:
    started = time.process_time()
    run()
    return round(time.process_time() - started, 4)


def exponents(points: list[Point]) -> dict[str, dict[str, float]]:
    """By sweep, the exponent of every quantity."""
    found: dict[str, dict[str, float]] = {}
    for sweep in SWEEPS:
        own = [point for point in points if point.sweep == sweep]
        if len(own) > 1:
            sizes = np.log([point.value for point in own])
            found[sweep] = {
                name: round(float(np.polyfit(sizes, np.log([getattr(point, name) for point in own]), 1)[0]), 2)
                for name in MEASURED
            }
    return found


def figure(points: list[Point], path: str) -> None:
    """Draws time and memory over every size, with the exponents."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    slopes = exponents(points)
    drawing, axes = plt.subplots(2, len(slopes), figsize=(9, 5), layout="constrained", squeeze=False)
    for column, sweep in enumerate(slopes):
        own = [point for point in points if point.sweep == sweep]
        sizes = [point.value for point in own]
        for name, unit in MEASURED.items():
            axis = axes[int(name.endswith("bytes")), column]
            scale = 1e-6 if name.endswith("bytes") else 1.0
            label = f"{name.partition('_')[0]}, exponent {slopes[sweep][name]:.2f}"
            values = [scale * getattr(point, name) for point in own]
            axis.loglog(sizes, values, marker="o", markersize=3, label=label)
            axis.set_xticks(sizes, [f"{size // 1024}k" if size >= 1024 else str(size) for size in sizes], minor=False)
            axis.set_xticks([], minor=True)
            axis.set_xlabel(sweep.replace("_", " "))
            axis.set_ylabel(unit if column == 0 else "")
            axis.legend(fontsize=7)
    drawing.savefig(path, dpi=80)
    plt.close(drawing)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sweeps", nargs="+", choices=list(SWEEPS), default=list(SWEEPS))
    parser.add_argument("--figure", help="where to draw them")
    parser.add_argument("--read", type=Path, help="draw these results instead of measuring")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    points: list[Point] = []
    if options.read:
        lines = [json.loads(line) for line in options.read.read_text(encoding="utf-8").splitlines()]
        points = [Point(**line) for line in lines]
    else:
        for sweep in options.sweeps:
            for value in SWEEPS[sweep]:
                points.append(measure(sweep, value))
                print(json.dumps(asdict(points[-1])), flush=True)
    for sweep, slopes in exponents(points).items():
        print(f"{sweep}: " + ", ".join(f"{name} {slope:+.2f}" for name, slope in slopes.items()), file=sys.stderr)
    if options.figure:
        figure(points, options.figure)


if __name__ == "__main__":
    main()
