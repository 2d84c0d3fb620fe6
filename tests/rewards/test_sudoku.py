import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.errors import UserInputError
from stabledrl.rewards import SudokuGrid
from stabledrl.rewards.sudoku_grids import all_grids, solutions

PUZZLE, SOLUTION = "0320020430402010", "4321123431422413"
TWO_SOLUTIONS = "0413314002000020"

digits = st.integers(1, 4).map(str)


def is_valid(grid: str) -> bool:
    units = [[4 * row + column for column in range(4)] for row in range(4)]
    units += [[4 * row + column for row in range(4)] for column in range(4)]
    units += [[4 * (row + i) + column + j for i in (0, 1) for j in (0, 1)] for row in (0, 2) for column in (0, 2)]
    return all({grid[cell] for cell in unit} == set("1234") for unit in units)


def score_by_definition(answer: str, puzzle: str) -> float:
    empty = [cell for cell in range(16) if puzzle[cell] == "0"]
    fitting = [grid for grid in all_grids() if all(clue in ("0", digit) for clue, digit in zip(puzzle, grid))]
    share = max(sum(answer[cell] == grid[cell] for cell in empty) / len(empty) for grid in fitting)
    altered = any(clue not in ("0", digit) for clue, digit in zip(puzzle, answer))
    return share / 2 if altered else share


def test_there_are_288_grids_and_all_are_valid() -> None:
    assert len(set(all_grids())) == 288
    assert all(is_valid(grid) for grid in all_grids())


def test_solutions_are_the_grids_that_agree_with_the_clues() -> None:
    assert solutions(PUZZLE) == (SOLUTION,)
    assert len(solutions(TWO_SOLUTIONS)) == 2
    assert solutions("0" * 16) == all_grids()
    assert solutions("11" + "0" * 14) == ()


@given(st.sampled_from(all_grids()), st.sets(st.integers(0, 15)), st.lists(digits, min_size=16, max_size=16))
def test_score_and_verdict_follow_the_definition(grid: str, empty: set[int], filled: list[str]) -> None:
    puzzle = "".join("0" if cell in empty else digit for cell, digit in enumerate(grid))
    answers = ["".join(filled), grid, "".join(filled[:8]) + grid[8:]]
    for answer in answers if empty else []:
        grade = SudokuGrid("bare").grade(answer, puzzle=puzzle)
        assert grade.score == pytest.approx(score_by_definition(answer, puzzle))
        assert grade.correct is (is_valid(answer) and all(clue in ("0", d) for clue, d in zip(puzzle, answer)))
        assert grade.correct is (grade.score == 1.0)


def test_every_solution_of_an_ambiguous_puzzle_is_right() -> None:
    for grid in solutions(TWO_SOLUTIONS):
        assert SudokuGrid("bare").grade(grid, puzzle=TWO_SOLUTIONS).correct


def test_altered_clue_halves_the_score() -> None:
    altered = SOLUTION[0] + "4" + SOLUTION[2:]
    grade = SudokuGrid("bare").grade(altered, puzzle=PUZZLE)
    assert (grade.correct, grade.score) == (False, 0.5)


def test_solved_puzzle_is_right_when_repeated() -> None:
    assert SudokuGrid("bare").grade(SOLUTION, puzzle=SOLUTION).score == 1.0


@pytest.mark.parametrize("space", [" ", "\n", "\t", "\r\n", "\u00a0"])
def test_white_space_does_not_count(space: str) -> None:
    assert SudokuGrid("bare").grade(space.join(["", *SOLUTION, ""]), puzzle=PUZZLE).correct


@pytest.mark.parametrize(
    "answer", ["", SOLUTION[:-1], SOLUTION + "1", SOLUTION[:-1] + "x", "|".join(SOLUTION), "٤" * 16, "４" * 16]
)
def test_anything_but_16_digits_scores_nothing(answer: str) -> None:
    grade = SudokuGrid("bare").grade(answer, puzzle=PUZZLE)
    assert (grade.correct, grade.score) == (False, 0.0)


@pytest.mark.parametrize("puzzle", [320020430402010, "320020430402010", "0520020430402010", "1100000000000000", ""])
def test_puzzle_that_is_none_is_refused(puzzle: str) -> None:
    with pytest.raises(UserInputError, match="puzzle"):
        SudokuGrid().grade(f"<answer>{SOLUTION}</answer>", puzzle=puzzle)


@given(st.text() | st.text(st.sampled_from("01234 \n"), max_size=20))
def test_no_completion_raises(text: str) -> None:
    for answer_format in ("tags", "bare"):
        grade = SudokuGrid(answer_format).grade(text, puzzle=PUZZLE)
        assert grade.score is not None
        assert 0 <= grade.score <= 1


def test_grading_time_is_linear() -> None:
    started = time.process_time()
    for fragment in ("1", " ", "1 ", "<answer>"):
        SudokuGrid().grade(f"<answer>{fragment * 500_000}</answer>", puzzle=PUZZLE)
    assert time.process_time() - started < 3
