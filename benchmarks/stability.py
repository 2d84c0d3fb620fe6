"""The stability study: methods x settings x seeds, from the shipped model. Writes two CSVs, prints tables and verdicts.

python benchmarks/stability.py --seeds 0 1 2                      # everything that is not in the CSV yet
python benchmarks/stability.py --parts core --seeds 0 1 2         # one part, see stability_runs.PARTS
python benchmarks/stability.py --report                           # tables, figure and verdicts from the CSVs alone
python benchmarks/stability.py --quick                            # two methods, one seed, in a temporary directory

The exit code is 1 where a separation that README states does not hold.
"""

import argparse
import csv
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script too

from benchmarks.curves import Curve, running_mean, train
from benchmarks.stability_report import figure, table, verdicts
from benchmarks.stability_runs import METHODS, PARTS, PUBLISHED, SETTINGS, WITHOUT_RATIO, Run, runs_of

RESULTS = Path("benchmarks/results/stability.csv")
CURVES = Path("benchmarks/results/stability_curves.csv")
BIN = 10
"""Optimizer steps per row of the curves."""


def layers(run: Run) -> list[dict[str, Any]]:
    """The run's configuration files on top of the quickstart, as data."""
    setting = SETTINGS[run.setting].layer()
    if run.method in WITHOUT_RATIO:
        callbacks = setting["trainer"]["callbacks"]
        setting["trainer"]["callbacks"] = [c for c in callbacks if c["class_path"] != "ExplodingWeightStress"]
    return [setting, METHODS.get(run.method, {})]


def options_of(run: Run, directory: Path, steps: int | None) -> list[str]:
    """Command-line options of the run; its files are written to a directory."""
    options = ["-c", "configs/quickstart.yaml"]
    for index, layer in enumerate(layers(run)):
        path = directory / f"layer_{index}.yaml"
        path.write_text(yaml.safe_dump(layer))
        options += ["-c", str(path)]
    if run.method in PUBLISHED:
        options += ["-c", f"configs/objective/{PUBLISHED[run.method]}.yaml"]
    if steps is not None:
        options += [f"--trainer.max_steps={steps}"]
    return [*options, f"--seed_everything={run.seed}", "--rollout.baseline=standardize"]


def summarize(run: Run, curves: dict[str, Curve], seconds: float) -> dict[str, Any]:
    """What the tables state of a run."""
    reward = [value for _, value in curves["rollout/reward_mean"]]
    smooth = [value for _, value in running_mean(curves["rollout/reward_mean"])][19:]
    norms = [value for _, value in curves["train/grad_norm"]]
    finite = [norm for norm in norms if norm < float("inf")]
    accuracy = [value for _, value in curves["val/sudoku/accuracy"]]
    best, drop = smooth[0], 0.0
    for value in smooth:
        best = max(best, value)
        drop = max(drop, best - value)
    return {
        **asdict(run),
        "steps": len(norms),
        "reward_first": statistics.fmean(reward[:5]),
        "reward_last_fifth": statistics.fmean(reward[-max(1, len(reward) // 5) :]),
        "reward_largest_fall": drop,
        "exact_before": accuracy[0],
        "exact_after": accuracy[-1],
        "grad_norm_median": statistics.median(norms),
        "grad_norm_max": max(norms),
        "grad_norm_cv": statistics.pstdev(finite) / statistics.fmean(finite) if finite else float("nan"),
        "spikes": int(curves["train/spikes"][-1][1]),
        "nonfinite": int(curves["train/nonfinite_updates"][-1][1]),
        "kl_last": curves["train/drift_kl"][-1][1],
        "seconds": round(seconds, 1),
    }


def binned(run: Run, curves: dict[str, Curve]) -> list[dict[str, Any]]:
    """The curves, a row per `BIN` steps: mean reward, largest gradient norm, last KL to the start."""
    rows = []
    for start in range(0, len(curves["train/grad_norm"]), BIN):
        part = {
            tag: [value for step, value in curves[tag] if start <= step < start + BIN]
            for tag in ("rollout/reward_mean", "train/grad_norm", "train/drift_kl")
        }
        rows.append(
            {
                **asdict(run),
                "step": start,
                "reward": statistics.fmean(part["rollout/reward_mean"]),
                "grad_norm_max": max(part["train/grad_norm"]),
                "kl": part["train/drift_kl"][-1],
            }
        )
    return rows


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a CSV, numbers as numbers; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def append(path: Path, rows: list[dict[str, Any]]) -> None:
    """Adds rows to a CSV at once, four significant digits a number."""
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        if new:
            writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})


def perform(runs: list[Run], results: Path, curve_file: Path, steps: int | None = None) -> None:
    """Makes the runs that the CSV lacks and adds each to it as it ends."""
    done = {(row["setting"], row["method"], row["seed"]) for row in read(results)}
    missing = [run for run in runs if (run.setting, run.method, run.seed) not in done]
    for number, run in enumerate(missing, 1):
        with tempfile.TemporaryDirectory() as directory:
            started = time.perf_counter()
            curves = train(options_of(run, Path(directory), steps), Path(directory))
        summary = summarize(run, curves, time.perf_counter() - started)
        append(curve_file, binned(run, curves))
        append(results, [summary])
        print(
            f"{number}/{len(missing)} {run.setting} {run.method} seed {run.seed}: reward "
            f"{summary['reward_first']:.2f} -> {summary['reward_last_fifth']:.2f}, {summary['spikes']} spikes, "
            f"{summary['seconds']} s",
            file=sys.stderr,
            flush=True,
        )


def quick() -> bool:
    """The separation in its shortest form."""
    with tempfile.TemporaryDirectory() as directory:
        results, curve_file = Path(directory) / "results.csv", Path(directory) / "curves.csv"
        perform([Run("core", "stress", method, 0) for method in ("StableDRL", "GRPO")], results, curve_file)
        print(table(read(results)))
        return verdicts(read(results))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="CSV of summaries; runs in it are not repeated")
    parser.add_argument("--curves", type=Path, default=CURVES, help="CSV of curves")
    parser.add_argument("--figure", type=Path, default=Path("docs/images/stability.png"), help="PNG to write")
    parser.add_argument("--report", action="store_true", help="no runs: tables, figure and verdicts from the CSVs")
    parser.add_argument("--quick", action="store_true", help="StableDRL and GRPO under stress, one seed, nothing kept")
    options = parser.parse_args()
    if options.quick:
        return 0 if quick() else 1
    if not options.report:
        perform(list(runs_of(options.parts, options.seeds)), options.results, options.curves)
    rows = read(options.results)
    print(table(rows))
    figure(read(options.curves), options.figure)
    return 0 if verdicts(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
