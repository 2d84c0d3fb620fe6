import random
import time
from typing import Any, get_args

import pytest

from stabledrl.data import Sudoku
from stabledrl.data.sudoku import HELD_OUT_GRIDS, make_puzzles, weak_demonstration
from stabledrl.errors import UserInputError
from stabledrl.protocols import Split, Task
from stabledrl.rewards import CountdownEquation, SudokuGrid
from stabledrl.rewards.sudoku_grids import all_grids, solutions

SPLITS = get_args(Split)


def grids_of(task: Task, split: Split) -> set[str]:
    return {solutions(row["puzzle"])[0] for row in task.rows(split)}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize(("min_empty", "max_empty"), [(6, 9), (1, 3), (11, 12)])
def test_puzzles_have_one_solution_and_the_asked_number_of_empty_cells(
    split: Split, min_empty: int, max_empty: int
) -> None:
    rows = Sudoku(200, 50, min_empty=min_empty, max_empty=max_empty).rows(split)
    assert len(rows) == (200 if split == "train" else 50)
    assert {row["puzzle"].count("0") for row in rows} == set(range(min_empty, max_empty + 1))
    for row in rows:
        assert solutions(row["puzzle"]) == (row["completion"],)
        assert row["prompt"] == row["puzzle"] + "="


def test_held_out_grids_never_occur_in_training_whatever_seeds_and_sizes() -> None:
    held_out = set.union(*(grids_of(Sudoku(1, size, seed=seed), "evaluation") for seed, size in [(0, 400), (1, 900)]))
    trained = set.union(*(grids_of(Sudoku(size, 1, seed=seed), "train") for seed, size in [(0, 4000), (3, 2000)]))
    assert not held_out & trained
    assert len(held_out) == HELD_OUT_GRIDS == 64
    assert len(trained) == len(all_grids()) - HELD_OUT_GRIDS == 224


def test_evaluation_puzzles_are_distinct() -> None:
    puzzles = [row["puzzle"] for row in Sudoku(1, 1000, min_empty=1, max_empty=1).rows("evaluation")]
    assert len(set(puzzles)) == 1000


def test_more_evaluation_puzzles_than_exist_are_refused() -> None:
    with pytest.raises(UserInputError, match=r"found 1024 distinct puzzles.*fewer than the 1025"):
        Sudoku(1, 64 * 16 + 1, min_empty=1, max_empty=1).rows("evaluation")


def test_rows_depend_on_the_seed_alone() -> None:
    first = Sudoku(50, 50, seed=3).rows("train")
    make_puzzles.cache_clear()
    random.seed(1)
    state = random.getstate()
    assert Sudoku(50, 50, seed=3).rows("train") == first
    assert random.getstate() == state
    assert Sudoku(50, 50, seed=4).rows("train") != first


def test_larger_sets_begin_with_the_smaller_ones() -> None:
    for split in SPLITS:
        assert Sudoku(90, 90).rows(split)[:30] == Sudoku(30, 30).rows(split)


def test_thousands_of_puzzles_take_seconds() -> None:
    make_puzzles.cache_clear()
    solutions.cache_clear()
    started = time.process_time()
    assert len(Sudoku(8000).rows("train")) == 8000
    assert time.process_time() - started < 2
    started = time.process_time()
    Sudoku(8000).rows("train")
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize("style", ["compact", "instruction"])
@pytest.mark.parametrize("split", SPLITS)
def test_own_grader_finds_demonstrations_right_and_weak_ones_worse(style: Any, split: Split) -> None:
    task = Sudoku(60, 60, prompt_style=style)
    (grader,), weights = task.rewards, task.reward_weights
    assert isinstance(grader, SudokuGrid)
    assert weights == [1.0]
    strong, weak = [
        [grader.grade(row[column], **row).score or 0.0 for row in task.rows(split)]
        for column in ("completion", "weak_completion")
    ]
    assert strong == [1.0] * 60
    assert 0.3 < sum(weak) / 60 < 0.9


def test_instruction_is_a_chat_that_shows_the_puzzle_and_asks_for_tags() -> None:
    row = Sudoku(1, 1, prompt_style="instruction").rows("train")[0]
    (message,) = row["prompt"]
    assert message["role"] == "user"
    assert row["puzzle"] in message["content"]
    assert "<answer>" in message["content"]


def test_leading_zeros_stay() -> None:
    rows = [row for row in Sudoku(200).rows("train") if row["puzzle"].startswith("0")]
    assert rows
    assert all(len(row["puzzle"]) == 16 and row["prompt"] == f"{row['puzzle']}=" for row in rows)


def test_weak_teacher_fills_rows_in_ascending_order() -> None:
    assert weak_demonstration("0320020430402010") == "1324123431422314"
    assert weak_demonstration("0000" * 4) == "1234" * 4


def test_own_rewards_replace_the_grader() -> None:
    rewards: list[Any] = [CountdownEquation(), len]
    task = Sudoku(1, 1, rewards=rewards, reward_weights=[0.5, 2.0])
    assert task.rewards == rewards
    assert task.reward_weights == [0.5, 2.0]


@pytest.mark.parametrize(
    "settings",
    [
        {"min_empty": 0},
        {"min_empty": 9, "max_empty": 8},
        {"max_empty": 13},
        {"train_size": 0},
        {"evaluation_size": 0},
        {"rewards": []},
        {"reward_weights": [1.0, 2.0]},
        {"rewards": [SudokuGrid(), SudokuGrid()], "reward_weights": [1.0]},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserInputError, match=next(iter(settings)).split("_")[-1]):
        Sudoku(**settings)
