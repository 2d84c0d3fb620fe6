"""Kills a run at random moments, resumes it each time, and compares its end with that of a run that nobody killed.

python benchmarks/kill_resume.py --kills 20 > benchmarks/results/kill_resume.jsonl

A kill is a SIGKILL at any moment: while the model is loaded, a rollout sampled, an update made, a checkpoint written.
The run resumes with --ckpt_path last, or starts anew where there is no checkpoint yet. Where it comes to its end with
kills left, another one begins. The exit code is 1 where a bit differs. Lives are forked processes, to save imports.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from stabledrl.checkpoints import find_last_checkpoint, read_checkpoint
from stabledrl.cli import main as stabledrl
from stabledrl.cli import training  # noqa: F401  # imported before the first fork

ROOT = Path(__file__).resolve().parents[1]
STEPS = 40
_CONFIGURATION = f"""
model: {{init_args: {{policy: {ROOT / "checkpoints" / "tiny-sudoku"}}}}}
data:
  init_args:
    tasks: [{{class_path: Sudoku, init_args: {{train_size: 40, evaluation_size: 4}}}}]
    prompts_per_rollout: 2
rollout: {{group_size: 4, temperature: 2.0, updates_per_rollout: 3}}
evaluation: {{every_n_steps: null, at_start: false}}
reward_collapse: {{window: 2}}
checkpoint: {{every_n_train_steps: 1, keep_last: 2}}
trainer: {{enable_progress_bar: false}}
"""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a study found.

    Attributes:
        steps: Optimizer steps of a run.
        kills: How many kills there were.
        while_written: How many of them hit while a checkpoint was written: they left a part of it.
        before_the_first: How many left no checkpoint: the run began anew.
        runs: How many runs came to their end after kills.
        different: How many of them ended with other weights, optimizer states or rollouts than the run without kills.
        seconds: Duration of a run that nobody kills.
        moments: When each kill came, in seconds from the start of its process.
    """

    steps: int
    kills: int
    while_written: int
    before_the_first: int
    runs: int
    different: int
    seconds: float
    moments: list[float]


def study(kills: int, seed: int, directory: Path, steps: int = STEPS) -> Result:
    """Kills runs below a directory, at moments that a seed draws."""
    draw = random.Random(seed)
    started = time.perf_counter()
    live(directory / "whole", steps)
    seconds = time.perf_counter() - started
    setup = _seconds_to_first_step(directory / "one", seconds)
    expected = _state(directory / "whole")
    moments: list[float] = []
    written = fresh = runs = different = 0
    while len(moments) < kills:
        place, runs = directory / f"run{runs}", runs + 1
        # On average, a life makes the run's steps divided by the number of kills.
        while len(moments) < kills:
            moment = draw.uniform(0, setup + 2 * (seconds - setup) / kills)
            if not live(place, steps, kill_after=moment):
                break
            moments.append(round(moment, 3))
            written += sum(1 for _ in place.glob("checkpoints/**/.*.partial"))
            _forget_parts(place)
            fresh += find_last_checkpoint(place) is None
        live(place, steps)
        different += not same(_state(place), expected)
    return Result(
        steps=steps,
        kills=len(moments),
        while_written=written,
        before_the_first=fresh,
        runs=runs,
        different=different,
        seconds=round(seconds, 2),
        moments=moments,
    )


def live(place: Path, steps: int, kill_after: float | None = None) -> bool:
    """Runs `stabledrl fit` in a process of its own, resumed where there is a checkpoint.

    Returns:
        Whether the process was killed; if not, it came to its end.
    """
    place.mkdir(parents=True, exist_ok=True)
    process = multiprocessing.get_context("fork").Process(target=_fit, args=(place, steps))
    process.start()
    process.join(kill_after)
    if killed := process.exitcode is None:
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    elif process.exitcode != 0:
        raise SystemExit(f"fit ended with {process.exitcode}:\n{(place / 'output.txt').read_text()}")
    return killed


def _fit(place: Path, steps: int) -> None:
    output = os.open(place / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    settings = place / "small.yaml"
    settings.write_text(_CONFIGURATION, encoding="utf-8")
    resume = ["--ckpt_path=last"] if find_last_checkpoint(place / "checkpoints") else []
    files = ["-c", str(ROOT / "configs" / "quickstart.yaml"), "-c", str(settings)]
    outputs = [f"--trainer.max_steps={steps}", f"--trainer.default_root_dir={place}"]
    code = stabledrl(["fit", *files, *outputs, *resume])
    sys.stdout.flush()
    os._exit(code)


def _seconds_to_first_step(place: Path, most: float) -> float:
    started = time.perf_counter()
    live(place, steps=1)
    return min(time.perf_counter() - started, most)


def _forget_parts(place: Path) -> None:
    """So that the next kill's are told apart."""
    for part in place.glob("checkpoints/**/.*.partial"):
        part.unlink()


def _state(place: Path) -> dict[str, Any]:
    """All that the rest of a run depends on."""
    path = find_last_checkpoint(place / "checkpoints")
    assert path is not None
    checkpoint = read_checkpoint(path)
    rollout = checkpoint["callbacks"]["GroupRollout"]
    del rollout["metrics"]["rollout/tokens_per_second"]
    names = ("state_dict", "optimizer_states", "lr_schedulers", "global_step")
    return {**{name: checkpoint[name] for name in names}, "rollout": rollout}


def same(first: Any, second: Any) -> bool:
    """Equality of every bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and torch.equal(first, second)
    if isinstance(first, Mapping):
        return (
            isinstance(second, Mapping)
            and first.keys() == second.keys()
            and all(same(first[name], second[name]) for name in first)
        )
    if isinstance(first, list | tuple):
        return isinstance(second, list | tuple) and len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="draws the moments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        result = study(options.kills, options.seed, Path(directory))
    print(json.dumps(asdict(result)))
    return 1 if result.different else 0


if __name__ == "__main__":
    sys.exit(main())
