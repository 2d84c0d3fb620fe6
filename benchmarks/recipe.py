"""Runs the quickstart for several seeds: a JSON line each, and the picture in README.

python benchmarks/quickstart.py --seeds 0 1 2 --figure docs/images/quickstart.png > benchmarks/results/quickstart.jsonl
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stabledrl.cli import main as stabledrl

ACCURACY = "val/sudoku/accuracy"
Curve = list[tuple[int, float]]


def run(config: str, seed: int, root: Path) -> dict[str, Curve]:
    """Trains with a shipped configuration and returns every curve of the run."""
    options = [f"--seed_everything={seed}", f"--trainer.default_root_dir={root}"]
    with contextlib.redirect_stdout(sys.stderr):
        code = stabledrl(["fit", "-c", config, *options])
    if code:
        raise SystemExit(f"seed {seed}: fit ended with {code}")
    (directory,) = root.glob("logs/*/version_0")
    return read_curves(directory)


def read_curves(directory: Path) -> dict[str, Curve]:
    """(step, value) pairs of every scalar in a run's event file."""
    events = EventAccumulator(str(directory))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def summarize(seed: int, curves: dict[str, Curve], seconds: float) -> dict[str, float]:
    """What README states of a run."""
    accuracy = [value for _, value in curves[ACCURACY]]
    clipped = [
        low + high for (_, low), (_, high) in zip(*(curves[f"train/clip_fraction_{s}"] for s in ("low", "high")))
    ]
    return {
        "seed": seed,
        "accuracy_before": accuracy[0],
        "accuracy_after": accuracy[-1],
        "gain": accuracy[-1] - accuracy[0],
        "clip_fraction_mean": sum(clipped) / len(clipped),
        "log_ratio_std_mean": _mean(curves["train/log_ratio_std"]),
        "grad_norm_max": max(value for _, value in curves["train/grad_norm"]),
        "spikes": curves["train/spikes"][-1][1],
        "seconds": round(seconds, 1),
    }


def _mean(curve: Curve) -> float:
    return sum(value for _, value in curve) / len(curve)


def table(results: list[dict[str, float]]) -> str:
    """The results as README shows them."""
    rows = [
        "| seed | solved before | solved after | ratios clipped | spikes |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| {result['seed']} | {result['accuracy_before']:.3f} | {result['accuracy_after']:.3f} "
        f"| {result['clip_fraction_mean']:.0%} | {result['spikes']:.0f} |"
        for result in results
    ]
    return "\n".join(rows)


def running_mean(points: Curve, window: int = 20) -> Curve:
    """Each value with its `window` - 1 predecessors, averaged."""
    values = [value for _, value in points]
    return [
        (step, sum(part) / len(part))
        for index, (step, _) in enumerate(points)
        for part in [values[max(0, index - window + 1) : index + 1]]
    ]


def plot(runs: dict[int, dict[str, Curve]], path: Path) -> None:
    """Reward, held-out accuracy and gradient norm of every seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = (
        ("rollout/reward_mean", "reward of sampled completions", "linear"),
        (ACCURACY, "held-out puzzles solved, greedy", "linear"),
        ("train/grad_norm", "gradient norm before clipping", "log"),
    )
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
    for axis, (tag, title, scale) in zip(axes, panels):
        for index, (seed, curves) in enumerate(runs.items()):
            # A rollout whose groups are all flat has no gradient, which a log scale cannot show.
            points = [(step, value) for step, value in curves[tag] if scale == "linear" or value > 0]
            color, noisy = f"C{index}", tag != ACCURACY
            axis.plot(
                *zip(*points), color=color, linewidth=1, alpha=0.25 if noisy else 1, marker=None if noisy else "o"
            )
            smooth = running_mean(points) if noisy else points
            axis.plot(*zip(*smooth), color=color, linewidth=1.6, label=f"seed {seed}")
        axis.set(title=title, xlabel="optimizer step", yscale=scale)
        axis.grid(alpha=0.3)
    axes[1].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", default="configs/quickstart.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--figure", type=Path, help="PNG to write")
    options = parser.parse_args()
    runs, results = {}, []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as directory:
            started = time.perf_counter()
            runs[seed] = run(options.config, seed, Path(directory))
            results.append(summarize(seed, runs[seed], time.perf_counter() - started))
            print(json.dumps(results[-1]), flush=True)
    print(table(results), file=sys.stderr)
    if options.figure:
        plot(runs, options.figure)


if __name__ == "__main__":
    main()
