"""The stability study: what it states of a run, and, slow, its short form."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks import stability
from benchmarks.stability_report import figure, table, verdicts
from benchmarks.stability_runs import METHODS, PARTS, PUBLISHED, SETTINGS, WITHOUT_RATIO, Run, runs_of
from tests.cli.runs import CONFIGS

from stabledrl.cli import main

NAMES = [*METHODS, *PUBLISHED]
ALL = sorted({(run.setting, run.method) for run in runs_of(list(PARTS), [0])})


def row(setting: str = "stress", method: str = "StableDRL", **values: Any) -> dict[str, Any]:
    healthy = {
        "part": "core", "setting": setting, "method": method, "seed": 0, "steps": 100, "reward_first": 0.6,
        "reward_last_fifth": 0.8, "reward_largest_fall": 0.02, "exact_before": 0.1, "exact_after": 0.4,
        "grad_norm_median": 1.0, "grad_norm_max": 2.0, "grad_norm_cv": 0.4, "spikes": 0, "nonfinite": 0,
        "kl_last": 0.01, "seconds": 20.0,
    }  # fmt: skip
    return {**healthy, **values}


@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        ({}, True),
        ({"reward_last_fifth": 0.49}, False),  # not .3 above
        ({"spikes": 1}, False),
        ({"reward_first": 0.81}, False),  # ends below its start
    ],
)
def test_a_stated_separation_holds_or_fails(changed: dict[str, Any], holds: bool) -> None:
    assert verdicts([row(**changed), row(method="GRPO", reward_last_fifth=0.2)]) is holds


@pytest.mark.parametrize(("fall", "holds"), [(0.1, True), (0.11, False)])
def test_a_long_run_may_not_fall_far_below_its_best(fall: float, holds: bool) -> None:
    rows = [row("long_stress", reward_largest_fall=fall), row("long_stress", "GRPO")]
    assert verdicts(rows) is holds


def test_the_summary_of_a_run_is_that_of_its_curves() -> None:
    rewards = [0.5] * 20 + [0.9] * 20 + [0.3] * 10
    curves = {
        "rollout/reward_mean": list(zip(range(0, 100, 2), rewards)),
        "train/grad_norm": list(zip(range(100), [1.0] * 98 + [3.0, float("inf")])),
        "train/spikes": [(0, 0.0), (99, 2.0)],
        "train/nonfinite_updates": [(0, 0.0), (99, 1.0)],
        "train/drift_kl": [(step, step / 196) for step in range(0, 100, 2)],
        "val/sudoku/accuracy": [(0, 0.15), (100, 0.4)],
    }
    found = stability.summarize(Run("core", "stress", "GRPO", 3), curves, 1.25)
    assert found["reward_first"] == pytest.approx(0.5)
    assert found["reward_last_fifth"] == pytest.approx(0.3)
    assert found["reward_largest_fall"] == pytest.approx(0.9 - (10 * 0.9 + 10 * 0.3) / 20)
    assert (found["grad_norm_median"], found["grad_norm_max"]) == (1.0, float("inf"))
    assert (found["spikes"], found["nonfinite"], found["kl_last"], found["steps"]) == (2, 1, 0.5, 100)
    bins = stability.binned(Run("core", "stress", "GRPO", 3), curves)
    assert len(bins) == 10
    assert bins[4]["reward"] == pytest.approx(0.9)
    assert bins[-1]["grad_norm_max"] == float("inf")


def test_what_was_written_is_read_back_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.csv"
    stability.append(path, [row()])
    stability.append(path, [row(seed=1)])
    assert stability.read(path) == [row(), row(seed=1)]
    monkeypatch.setattr(stability, "train", lambda *arguments: pytest.fail("run again"))
    stability.perform([Run("core", "stress", "StableDRL", seed) for seed in (0, 1)], path, tmp_path / "curves.csv")


def test_tables_and_figure_are_made_of_what_there_is(tmp_path: Path) -> None:
    rows = [row(), row(seed=1, reward_last_fifth=0.9), row("summed", "GRPO", grad_norm_max=float("inf"))]
    text = table(rows)
    assert "| StableDRL | 2 | 0.85 (0.80 to 0.90) |" in text
    assert SETTINGS["summed"].what in text
    point = {"part": "core", "setting": "stress", "method": "GRPO", "seed": 0}
    figure([{**point, "step": s, "reward": 0.5, "grad_norm_max": 1.0, "kl": 0.0} for s in (0, 10)], tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 1000


def test_every_part_names_known_settings_and_methods() -> None:
    for setting, method in ALL:
        assert setting in SETTINGS
        assert method in METHODS or method in PUBLISHED
    assert set(PUBLISHED) >= WITHOUT_RATIO


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_every_setting_is_a_valid_configuration(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = next(method for name, method in ALL if name == setting)
    options = stability.options_of(Run("core", setting, method, 0), tmp_path, None)
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["fit", *options, "--print_config"])
    assert end.value.code == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["trainer"]["max_steps"] == SETTINGS[setting].steps
    assert config["model"]["init_args"]["optimizer"]["init_args"]["lr"] == SETTINGS[setting].lr


def test_the_committed_results_hold_and_are_those_in_the_docs() -> None:
    rows = stability.read(CONFIGS.parent / stability.RESULTS)
    made = {(row["setting"], row["method"], row["seed"]) for row in rows}
    assert made == {(run.setting, run.method, run.seed) for run in runs_of(list(PARTS), [0, 1, 2])}
    assert verdicts(rows)
    lines = [line for line in table(rows).splitlines() if line]
    docs = (CONFIGS.parent / "docs/stability.md").read_text()
    assert [line for line in lines if line not in docs] == []
    readme = (CONFIGS.parent / "README.md").read_text()
    shown = [line for line in readme.splitlines() if line.startswith(tuple(f"| {name} | 3 |" for name in NAMES))]
    assert shown
    assert [line for line in shown if line not in lines] == []


@pytest.mark.slow
def test_grpo_collapses_under_stress_and_stabledrl_does_not() -> None:
    assert stability.quick()
