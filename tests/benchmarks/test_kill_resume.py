"""The study of kills, in small."""

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.kill_resume import same, study

STATE: dict[str, Any] = {"weights": {"a": torch.tensor([1.0, 2.0])}, "steps": [1, (2, 3)], "rate": 0.1}


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_as_one_that_nobody_killed(tmp_path: Path) -> None:
    result = study(kills=3, seed=1, directory=tmp_path, steps=12)
    assert result.kills == len(result.moments) == 3
    assert result.runs >= 1
    assert result.different == 0


@pytest.mark.parametrize(
    "change",
    [
        {"weights": {"a": torch.tensor([1.0, 2.0 + 2e-7])}},
        {"weights": {"a": torch.tensor([1.0, 2.0, 3.0])}},
        {"weights": {"b": torch.tensor([1.0, 2.0])}},
        {"weights": None},
        {"steps": [1, (2, 4)]},
        {"steps": [1]},
        {"rate": 0.2},
        {"more": 1},
    ],
    ids=str,
)
def test_every_difference_is_noticed(change: dict[str, Any]) -> None:
    assert same(STATE, {**STATE, "weights": {"a": torch.tensor([1.0, 2.0])}})
    assert not same(STATE, {**STATE, **change})
    assert not same({**STATE, **change}, STATE)
