"""Tables, figure and verdicts of the stability study, from the rows of its CSVs."""

import io
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.stability_runs import SETTINGS

Row = dict[str, Any]


def table(rows: list[Row]) -> str:
    """A Markdown table per setting: means over seeds, and the range of the reward."""
    parts = []
    for setting, found in _by(rows, "setting").items():
        lines = [
            f"**{setting}**: {SETTINGS[setting].what}",
            "",
            "| method | seeds | reward, last fifth (range) | solved before -> after | grad norm median / max | cv "
            "| spikes | not finite | largest fall | KL |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        lines += [_line(method, runs) for method, runs in _by(found, "method").items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _line(method: str, runs: list[Row]) -> str:
    def mean(name: str) -> float:
        return statistics.fmean(run[name] for run in runs)

    rewards = [run["reward_last_fifth"] for run in runs]
    return (
        f"| {method} | {len(runs)} | {mean('reward_last_fifth'):.2f} ({min(rewards):.2f} to {max(rewards):.2f}) "
        f"| {mean('exact_before'):.2f} -> {mean('exact_after'):.2f} "
        f"| {statistics.median(run['grad_norm_median'] for run in runs):.2g} / "
        f"{max(run['grad_norm_max'] for run in runs):.2g} | {mean('grad_norm_cv'):.2f} | {_total(runs, 'spikes')} "
        f"| {_total(runs, 'nonfinite')} of {_total(runs, 'steps')} | {max(r['reward_largest_fall'] for r in runs):.2f} "
        f"| {mean('kl_last'):.2g} |"
    )


def _total(runs: list[Row], name: str) -> int:
    return sum(run[name] for run in runs)


def _by(rows: Iterable[Row], name: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row[name]].append(row)
    return dict(found)


def verdicts(rows: list[Row]) -> bool:
    """Prints whether each separation that is claimed holds, of those whose runs are there; True if all do."""
    runs = {(row["setting"], row["method"], row["seed"]): row for row in rows}
    claims: list[tuple[str, str, str, str, Callable[[Row, Row], bool]]] = [
        ("stress", "StableDRL", "GRPO", "GRPO's reward in the last fifth is at least .3 below StableDRL's", _far_below),
        ("stress", "StableDRL", "GRPO", "StableDRL has no spike and ends above its start", _healthy),
        (
            "long_stress",
            "StableDRL",
            "GRPO",
            "StableDRL's running reward never falls more than .1 below its best",
            _steady,
        ),
        (
            "long_summed",
            "StableDRL",
            "GRPO",
            "StableDRL's running reward never falls more than .1 below its best",
            _steady,
        ),
        (
            "group_noise",
            "StableDRL, eps 5",
            "clip only, eps 5",
            "with self-normalisation the gradient norm varies less than half as much",
            _calmer,
        ),
    ]
    holds = True
    for setting, own, other, claim, test in claims:
        pairs = [
            (runs[key], runs[setting, other, key[2]])
            for key in runs
            if key[:2] == (setting, own) and (setting, other, key[2]) in runs
        ]
        if pairs:
            results = [test(ours, theirs) for ours, theirs in pairs]
            holds &= all(results)
            print(
                f"{'holds' if all(results) else 'FAILS'} ({sum(results)} of {len(results)} seeds), {setting}: {claim}"
            )
    return holds


def _far_below(ours: Row, theirs: Row) -> bool:
    return theirs["reward_last_fifth"] <= ours["reward_last_fifth"] - 0.3


def _healthy(ours: Row, theirs: Row) -> bool:
    return ours["spikes"] == 0 and ours["reward_last_fifth"] > ours["reward_first"]


def _calmer(ours: Row, theirs: Row) -> bool:
    return ours["grad_norm_cv"] < theirs["grad_norm_cv"] / 2


def _steady(ours: Row, theirs: Row) -> bool:
    return ours["reward_largest_fall"] <= 0.1


PANELS = (
    ("reward", "reward", "linear"),
    ("grad_norm_max", "largest gradient norm of 10 steps", "log"),
    ("kl", "KL to the start", "symlog"),
)
SHOWN = ("stress", "summed", "well_behaved", "long_stress", "long_summed")


def figure(rows: list[Row], path: Path) -> None:
    """Reward, gradient norm and drift against optimizer steps: a row per setting, a line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    by_setting = _by(rows, "setting")
    settings = [(name, by_setting[name]) for name in SHOWN if name in by_setting]
    methods = ("StableDRL", "clip only", "self-normalisation only", "GRPO")
    size = (12, 2.6 * len(settings))
    drawing, axes = pyplot.subplots(len(settings), 3, figsize=size, layout="constrained", squeeze=False)
    for line, (setting, found) in zip(axes, settings):
        for axis, (name, title, scale) in zip(line, PANELS):
            for index, method in enumerate(methods):
                for seed, run in enumerate(_by((r for r in found if r["method"] == method), "seed").values()):
                    # A gradient that is not finite, or 0 where all groups are flat, has no place on a log scale.
                    points = [(r["step"], r[name]) for r in run if scale != "log" or 0 < r[name] < float("inf")]
                    axis.plot(*zip(*points), color=f"C{index}", linewidth=1.1, label=method if seed == 0 else None)
            axis.set(title=f"{setting}: {title}")
            axis.set_yscale(scale, **({"linthresh": 0.1} if scale == "symlog" else {}))
            axis.grid(alpha=0.3)
        line[0].legend(frameon=False, fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("optimizer step")
    drawn = io.BytesIO()
    drawing.savefig(drawn, dpi=80)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(48).save(path, optimize=True)  # lines need few colours
