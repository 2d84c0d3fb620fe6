"""The quickstart keeps its promise."""

import json
from pathlib import Path

import pytest
from benchmarks.recipe import run, summarize

from stabledrl.cli import main

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_quickstart_learns_clips_and_reports_what_test_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    curves = run("configs/quickstart.yaml", 0, tmp_path)
    summary = summarize(0, curves, 0.0)
    assert summary["gain"] >= 0.25
    assert 0.01 < summary["clip_fraction_mean"] < 0.9
    assert summary["log_ratio_std_mean"] > 0.01
    assert main(["test", "-c", "configs/quickstart.yaml", f"--trainer.default_root_dir={tmp_path}"]) == 0
    (samples,) = tmp_path.glob("logs/quickstart/test/version_0/test_samples.jsonl")
    verdicts = [json.loads(line)["correct"] for line in samples.read_text().splitlines()]
    assert sum(verdicts) / len(verdicts) == pytest.approx(summary["accuracy_after"], abs=1e-6)


@pytest.mark.parametrize(("recipe", "least"), [("quickstart", 0.25), ("tiny_block", 0.2)])
def test_committed_results_meet_the_bar(recipe: str, least: float) -> None:
    lines = (ROOT / "benchmarks" / "results" / f"{recipe}.jsonl").read_text().splitlines()
    results = [json.loads(line) for line in lines]
    assert {result["seed"] for result in results} == {0, 1, 2}
    assert all(result["gain"] >= least for result in results)
