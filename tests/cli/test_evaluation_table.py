"""`stabledrl test` leaves a table, for one length or several, and refuses what does not fit."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.runs import error_of, small
from tests.cli.test_training import scalars

from stabledrl import backbones
from stabledrl.cli import main

SAMPLED = ["--evaluation_table.lengths=[16,32]", "--evaluation_table.samples_per_prompt=2"]


def rows(directory: Path) -> list[dict[str, Any]]:
    with (directory / "test_table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_numbers_agree_everywhere(tmp_path: Path, checkpoint: Path) -> None:
    options = [f"--ckpt_path={checkpoint}", *SAMPLED, "--evaluation_table.k=[2]", "--evaluation_table.temperature=0.7"]
    assert main(["test", *small(tmp_path, *options)]) == 0
    directory = tmp_path / "logs/quickstart/test/version_0"
    found = rows(directory)
    assert [(row["task"], row["completion_length"], row["prompts"]) for row in found] == [
        ("sudoku", "16", "8"),
        ("sudoku", "32", "8"),
    ]
    lines = [json.loads(line) for line in (directory / "test_samples.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 8 * (1 + 2)
    assert all({"answer", "reason", "correct", "completion", "denoising_steps"} <= line.keys() for line in lines)
    for row in found:
        own = [line for line in lines if str(line["completion_length"]) == row["completion_length"]]
        greedy = [line["correct"] for line in own if line["temperature"] == 0]
        sampled = [line["correct"] for line in own if line["temperature"] == 0.7]
        assert float(row["accuracy"]) == sum(greedy) / 8
        pairs = zip(sampled[::2], sampled[1::2], strict=True)
        assert float(row["pass@2"]) == pytest.approx(sum(any(pair) for pair in pairs) / 8)
    assert scalars(directory)["test/sudoku/accuracy"] == pytest.approx([float(found[0]["accuracy"])])
    markdown = (directory / "test_table.md").read_text(encoding="utf-8").splitlines()
    for row, line in zip(found, markdown[2:4], strict=True):
        cells = [cell.strip() for cell in line.split("|")]
        assert cells[5].startswith(f"{float(row['accuracy']):.3f} [{float(row['accuracy_low']):.3f},")
        assert cells[6:8] == [f"{float(row[name]):.3f}" for name in ("pass@2", "majority@2")]


def test_the_seed_is_that_of_the_command(tmp_path: Path, checkpoint: Path) -> None:
    texts = []
    for seed in (0, 0, 1):
        options = [f"--ckpt_path={checkpoint}", "--evaluation_table.samples_per_prompt=2", f"--seed_everything={seed}"]
        assert main(["test", *small(tmp_path, *options, "--evaluation_table.temperature=2")]) == 0
        file = tmp_path / f"logs/quickstart/test/version_{len(texts)}" / "test_samples.jsonl"
        texts.append(file.read_text(encoding="utf-8"))
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("command", ["validate", "predict"])
def test_other_commands_leave_no_table(command: str, tmp_path: Path, checkpoint: Path) -> None:
    assert main([command, *small(tmp_path, f"--ckpt_path={checkpoint}", *SAMPLED)]) == 0
    directory = tmp_path / f"logs/quickstart/{command}/version_0"
    assert not list(directory.glob("*table*"))
    assert len((directory / f"{command}_samples.jsonl").read_text().splitlines()) == 8


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--evaluation_table.lengths=[16,24]"], ["completion_length 24", "block_size 16", "16 or 32"]),
        (["--evaluation_table.steps_per_token=0.3"], ["completion_length 16", "0.3", "multiple of 10"]),
        (["--evaluation_table.steps_per_token=2"], ["steps_per_token 2.0", "at most 1"]),
        (["--evaluation_table.lengths=many"], ["evaluation_table.lengths", "many"]),
        (["--evaluation_table.k=[4]"], ["k 4", "samples_per_prompt 0"]),
        (["--evaluation_table.sample_per_prompt=4"], ["did you mean --evaluation_table.samples_per_prompt?"]),
    ],
    ids=lambda value: value[0],
)
def test_mistakes_end_in_one_line_before_the_model_is_loaded(
    options: list[str],
    parts: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backbones.loading, "load_model", lambda *_: pytest.fail("the model was loaded"))
    error = error_of(["test", *small(tmp_path, "--ckpt_path=initial", *options)], capsys)
    assert [part for part in parts if part not in error] == [], error
