"""The table's two forms say the same, and say where there is no number."""

import csv
import io
from typing import Any

import pytest

from stabledrl.score_table import ScoreRow, to_csv, to_markdown
from stabledrl.scores import wilson_interval


def row(**changes: Any) -> ScoreRow:
    values: dict[str, Any] = {
        "task": "sudoku",
        "completion_length": 16,
        "denoising_steps": 8,
        "prompts": 30,
        "correct": 10,
        "mean_length": 15.25,
        "tokens_per_second": 1234.5,
        "steps_per_second": 67.89,
        "samples_per_prompt": 4,
        "temperature": 0.9,
        "pass_at_k": {1: 0.25, 4: 2 / 3},
        "majority_at_k": {1: 0.25, 4: 0.5},
    }
    return ScoreRow(**{**values, **changes})


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_csv_holds_every_number_unrounded() -> None:
    (found,) = csv.DictReader(io.StringIO(to_csv([row()])))
    low, high = wilson_interval(10, 30)
    expected = {
        "completion_length": 16,
        "denoising_steps": 8,
        "prompts": 30,
        "correct": 10,
        "accuracy": 1 / 3,
        "accuracy_low": low,
        "accuracy_high": high,
        "mean_length": 15.25,
        "tokens_per_second": 1234.5,
        "steps_per_second": 67.89,
        "samples_per_prompt": 4,
        "temperature": 0.9,
        "pass@1": 0.25,
        "pass@4": 2 / 3,
        "majority@1": 0.25,
        "majority@4": 0.5,
    }
    assert found.pop("task") == "sudoku"
    assert {name: float(value) for name, value in found.items()} == expected


def test_markdown_rounds_the_same_numbers() -> None:
    header, rule, line, _, legend = to_markdown([row()]).splitlines()
    assert dict(zip(cells(header), cells(line))) == {
        "task": "sudoku",
        "length": "16",
        "steps": "8",
        "prompts": "30",
        "accuracy": "0.333 [0.192, 0.512]",
        "pass@1": "0.250",
        "pass@4": "0.667",
        "majority@1": "0.250",
        "majority@4": "0.500",
        "mean length": "15.2",
        "tokens/s": "1234",
        "steps/s": "67.9",
    }
    assert len(cells(rule)) == len(cells(header))
    assert legend.endswith("4 samples per prompt at temperature 0.9.")


def test_without_samples_there_is_no_column_for_them() -> None:
    bare = row(samples_per_prompt=0, temperature=None, pass_at_k={}, majority_at_k={})
    assert "@" not in to_markdown([bare])
    assert "@" not in to_csv([bare])


@pytest.mark.parametrize("changes", [{"majority_at_k": {1: None, 4: None}}, {"denoising_steps": None}], ids=str)
def test_a_number_that_is_not_there_is_left_empty(changes: dict[str, Any]) -> None:
    (found,) = csv.DictReader(io.StringIO(to_csv([row(**changes)])))
    assert list(found.values()).count("") == to_markdown([row(**changes)]).count(" - |") > 0


def test_lines_are_aligned_and_names_cannot_break_the_table() -> None:
    lines = to_markdown([row(), row(task="a|b", prompts=12345, tokens_per_second=9.0)]).splitlines()[:4]
    assert len({len(line) for line in lines}) == 1
    assert "a\\|b" in lines[3]
    (found,) = csv.DictReader(io.StringIO(to_csv([row(task='a,"b"')])))
    assert found["task"] == 'a,"b"'
