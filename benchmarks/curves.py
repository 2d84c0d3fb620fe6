"""Runs a configuration and reads its curves back from the event file: shared by the benchmarks that train."""

import contextlib
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stabledrl.cli import main as stabledrl

Curve = list[tuple[int, float]]


def train(options: list[str], root: Path) -> dict[str, Curve]:
    """Calls `stabledrl fit` with outputs below a directory and returns every curve of the run."""
    with contextlib.redirect_stdout(sys.stderr):
        code = stabledrl(["fit", *options, f"--trainer.default_root_dir={root}"])
    if code:
        raise SystemExit(f"fit {' '.join(options)} ended with {code}")
    (directory,) = root.glob("logs/*/version_0")
    return read_curves(directory)


def read_curves(directory: Path) -> dict[str, Curve]:
    """(step, value) pairs of every scalar in a run's event file."""
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def running_mean(points: Curve, window: int = 20) -> Curve:
    """Each value with its `window` - 1 predecessors, averaged."""
    values = [value for _, value in points]
    return [
        (step, sum(part) / len(part))
        for index, (step, _) in enumerate(points)
        for part in [values[max(0, index - window + 1) : index + 1]]
    ]
