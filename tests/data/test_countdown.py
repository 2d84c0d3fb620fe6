import random
from typing import Any, get_args

import pytest

from stabledrl.data import Countdown
from stabledrl.data.countdown import make_puzzles
from stabledrl.errors import UserInputError
from stabledrl.protocols import Split
from stabledrl.rewards import CountdownEquation

SPLITS = get_args(Split)


def keys(rows: Any) -> list[tuple[tuple[int, ...], int]]:
    return [(tuple(sorted(row["numbers"])), row["target"]) for row in rows]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("style", ["compact", "instruction"])
@pytest.mark.parametrize(
    "shape",
    [{}, {"operators": "*"}, {"count": 2, "max_number": 20}, {"count": 4, "max_number": 50, "operators": "+-*/"}],
)
def test_demonstrations_reach_the_target(split: Split, style: Any, shape: dict[str, Any]) -> None:
    task = Countdown(train_size=200, evaluation_size=20, prompt_style=style, **shape)
    rows = task.rows(split)
    assert len(rows) == (200 if split == "train" else 20)
    (grader,) = task.rewards
    assert isinstance(grader, CountdownEquation)
    for row in rows:
        assert grader.grade(row["completion"], **row).correct
        assert len(row["numbers"]) == shape.get("count", 3)
        assert all(1 <= number <= shape.get("max_number", 9) for number in row["numbers"])
        assert row["target"] >= 1
        used = set(row["completion"].replace("<answer>", "").replace("</answer>", "")) - set("0123456789")
        assert used <= set(shape.get("operators", "+-"))


def test_held_out_puzzles_never_occur_in_training_whatever_seeds_and_sizes() -> None:
    held_out = {
        key for seed in (0, 1) for key in keys(Countdown(evaluation_size=100 + seed, seed=seed).rows("evaluation"))
    }
    trained = {key for seed in (0, 2) for key in keys(Countdown(train_size=4000 + seed, seed=seed).rows("train"))}
    assert not held_out & trained
    assert len(held_out) > 100
    assert len(trained) > 400


def test_evaluation_puzzles_are_distinct() -> None:
    rows = keys(Countdown().rows("evaluation"))
    assert len(rows) == len(set(rows)) == 128


def test_more_evaluation_puzzles_than_exist_are_refused() -> None:
    with pytest.raises(UserInputError, match=r"distinct puzzles of 2 numbers up to 3.*fewer than the 100"):
        Countdown(count=2, max_number=3, evaluation_size=100).rows("evaluation")


def test_prompt_does_not_show_the_order_of_the_solution() -> None:
    for row in Countdown().rows("train"):
        assert row["numbers"] == sorted(row["numbers"])
        assert row["prompt"] == f"{','.join(map(str, row['numbers']))}:{row['target']}="


def test_instruction_is_a_chat_that_names_numbers_and_target() -> None:
    row = Countdown(prompt_style="instruction").rows("train")[0]
    (message,) = row["prompt"]
    assert message["role"] == "user"
    assert str(row["numbers"]) in message["content"]
    assert str(row["target"]) in message["content"]
    assert row["completion"].startswith("<answer>")


def test_rows_depend_on_the_seed_alone() -> None:
    first = Countdown(seed=3).rows("train")
    make_puzzles.cache_clear()
    random.seed(1)
    state = random.getstate()
    assert Countdown(seed=3).rows("train") == first
    assert random.getstate() == state
    assert Countdown(seed=4).rows("train") != first


@pytest.mark.parametrize(
    "settings",
    [
        {"count": 1},
        {"count": 7},
        {"max_number": 1},
        {"operators": ""},
        {"operators": "+^"},
        {"train_size": 0},
        {"evaluation_size": 0},
        {"rewards": []},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserInputError, match=next(iter(settings))):
        Countdown(**settings)
