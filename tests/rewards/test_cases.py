"""Every recorded grading case of the rewards that exist."""

import json
from pathlib import Path
from typing import Any

import pytest

from stabledrl import rewards

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "rewards.jsonl").read_text().splitlines()]
KNOWN = [case for case in CASES if hasattr(rewards, case["reward"])]


def test_cases_cover_both_puzzles() -> None:
    assert {"CountdownEquation", "SudokuGrid"} <= {case["reward"] for case in KNOWN}


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: f"{case['id']}: {case['why']}")
def test_verdict_is_as_recorded(case: dict[str, Any]) -> None:
    grade = getattr(rewards, case["reward"])().grade(case["completion"], **case["row"])
    assert grade.correct is case["correct"], grade.reason
    assert (grade.score == 1.0) is case["correct"]
    assert grade.reason
