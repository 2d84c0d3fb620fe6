"""Grades 4x4 Sudoku."""

from typing import Any

from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.grade import Grade
from stabledrl.rewards.answer_text import AnswerFormat, find_answer
from stabledrl.rewards.graded import GradedReward
from stabledrl.rewards.sudoku_grids import CELLS, solutions


class SudokuGrid(GradedReward):
    """Right is any rule-valid completion of the clues.

    The score is the share of empty cells that agree with the nearest solution, halved when a clue is altered; 0 unless
    the answer is exactly 16 digits. White space does not count.

    Args:
        answer_format: Where the answer stands, see `stabledrl.rewards.answer_text`.
    """

    def __init__(self, answer_format: AnswerFormat = "tags") -> None:
        self.answer_format: AnswerFormat = answer_format

    @override
    def grade(  # type: ignore[override]  # the column it needs has a name
        self, completion: str, /, *, puzzle: str, **row: Any
    ) -> Grade:
        """Judges a grid.

        Args:
            completion: Text with the 16 digits, row by row.
            puzzle: 16 digits, 0 = empty.
            **row: Other columns, ignored.

        Returns:
            The verdict.

        Raises:
            UserInputError: The puzzle is not one, or has no solution.
        """
        if not isinstance(puzzle, str) or len(puzzle) != CELLS or not set(puzzle) <= set("01234"):
            raise UserInputError(f"puzzle {puzzle!r} must be a text of 16 digits from 0 to 4")
        solved = solutions(puzzle)
        if not solved:
            raise UserInputError(f"puzzle {puzzle!r} has no solution")
        found = find_answer(completion, self.answer_format)
        if found is None:
            return Grade(correct=False, score=0.0, answer=None, reason="no complete answer tag")
        answer = "".join(found.split())
        if len(answer) != CELLS or not set(answer) <= set("0123456789"):
            return Grade(correct=False, score=0.0, answer=answer[:64], reason="not exactly 16 digits")
        if answer in solved:
            return Grade(correct=True, score=1.0, answer=answer, reason="solved")
        empty = [cell for cell in range(CELLS) if puzzle[cell] == "0"]
        right = max(sum(answer[cell] == grid[cell] for cell in empty) for grid in solved)
        share = right / len(empty) if empty else 0.0
        if any(answer[cell] != puzzle[cell] for cell in range(CELLS) if puzzle[cell] != "0"):
            return Grade(correct=False, score=share / 2, answer=answer, reason="a clue is altered")
        return Grade(correct=False, score=share, answer=answer, reason=f"{right} of {len(empty)} empty cells right")
