"""Grades Countdown: reach a target with given numbers."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.grade import Grade
from stabledrl.rewards.answer_text import AnswerFormat, find_answer
from stabledrl.rewards.arithmetic import ExpressionError, evaluate, tokenize
from stabledrl.rewards.graded import GradedReward


class CountdownEquation(GradedReward):
    """Right is an expression of + - * / that uses every given number exactly once and equals the target, exactly.

    A trailing `= number` is allowed where it is true. Everything else scores 0, or `partial_score` where the numbers
    are the given ones and only the target is missed.

    Args:
        answer_format: Where the answer stands, see `stabledrl.rewards.answer_text`.
        partial_score: Score of an expression of the given numbers that misses the target.

    Raises:
        UserInputError: `partial_score` is not in [0, 1).
    """

    def __init__(self, answer_format: AnswerFormat = "tags", partial_score: float = 0.0) -> None:
        if not 0 <= partial_score < 1:
            raise UserInputError(f"partial_score {partial_score} must be at least 0 and below 1")
        self.answer_format: AnswerFormat = answer_format
        self.partial_score = partial_score

    @override
    def grade(  # type: ignore[override]  # the columns it needs have names
        self, completion: str, /, *, numbers: Sequence[int], target: int, **row: Any
    ) -> Grade:
        """Judges an equation.

        Args:
            completion: Text with the equation.
            numbers: The given numbers.
            target: What it has to equal.
            **row: Other columns, ignored.

        Returns:
            The verdict.

        Raises:
            UserInputError: `numbers` or `target` are not whole numbers.
        """
        if isinstance(numbers, str) or not all(isinstance(number, Integral) for number in [*numbers, target]):
            raise UserInputError(f"numbers {numbers!r} and target {target!r} must be whole numbers, not text")
        answer = find_answer(completion, self.answer_format)
        if answer is None:
            return Grade(correct=False, score=0.0, answer=None, reason="no complete answer tag")
        shown = answer[:64]
        left, equals, right = answer.partition("=")
        try:
            tokens = tokenize(left)
            value = evaluate(tokens)
            if equals and _number(right) != value:
                return Grade(correct=False, score=0.0, answer=shown, reason="the equation is false")
        except ExpressionError as error:
            return Grade(correct=False, score=0.0, answer=shown, reason=str(error))
        if sorted(token for token in tokens if isinstance(token, int)) != sorted(numbers):
            return Grade(correct=False, score=0.0, answer=shown, reason="not each given number exactly once")
        if value != target:
            reason = f"equals {value}, not {target}"
            return Grade(correct=False, score=self.partial_score, answer=shown, reason=reason)
        return Grade(correct=True, score=1.0, answer=shown, reason="reaches the target")


def _number(text: str) -> int:
    """A whole number, with or without a sign."""
    match tokenize(text):
        case [int(number)]:
            return number
        case ["-", int(number)]:
            return -number
    raise ExpressionError("no single number after the equals sign")
