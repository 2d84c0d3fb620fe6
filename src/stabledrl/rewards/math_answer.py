"""Grades mathematical answers, by math-verify in processes with a deadline."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.grade import Grade
from stabledrl.rewards.answer_text import AnswerFormat, find_answer, last_box
from stabledrl.rewards.graded import GradedReward
from stabledrl.rewards.math_judge import prepare, same_answer
from stabledrl.rewards.math_text import MAX_LENGTH, canonical, committed_value, exact_number, same_text
from stabledrl.rewards.worker_pool import Outcome, WorkerPool, check_limits, shared_pool

_MEMORY_LIMIT = 4 << 30


class MathAnswer(GradedReward):
    r"""Right is the value of the `answer` column, however it is written.

    1/2, \frac{1}{2} and 0.5 are the same; 0.333 and 1/3 are not. Units, currency, percent signs and thousands
    separators do not count, so 50 % is 50. Roots have no order, coordinates have. x = 5 answers 5 and nothing else; a
    sentence answers only if it holds one value. Right scores 1, wrong 0.

    What cannot be decided within the deadline, such as a tower of powers, is not right and has no score.

    Args:
        answer_format: Where the answer stands, see `stabledrl.rewards.answer_text`.
        deadline: Seconds that one comparison may take.
        batch_deadline: Seconds that a batch may take; what is then undecided has no score. Keep it below the timeout of
            collectives when training on several devices.
        workers: Processes that compare, shared by all such graders; None takes one per core, 2 to 4.

    Raises:
        UserInputError: A deadline or the number of workers is out of range.
    """

    def __init__(
        self,
        answer_format: AnswerFormat = "tags",
        deadline: float = 5.0,
        *,
        batch_deadline: float = 120.0,
        workers: int | None = None,
    ) -> None:
        workers = max(2, min(4, os.cpu_count() or 1)) if workers is None else workers
        check_limits(deadline, batch_deadline, workers)
        self.answer_format: AnswerFormat = answer_format
        self.deadline = deadline
        self.batch_deadline = batch_deadline
        self.workers = workers

    @override
    def grade(  # type: ignore[override]  # the column it needs has a name
        self, completion: str, /, *, answer: str | float, **row: Any
    ) -> Grade:
        """Judges an answer.

        Args:
            completion: Text with the answer.
            answer: The right one, in LaTeX or plain; a number too.
            **row: Other columns, ignored.

        Returns:
            The verdict.

        Raises:
            UserInputError: `answer` is neither a number nor a text that holds something.
        """
        return self.grade_batch([completion], [{"answer": answer}])[0]

    @override
    def grade_batch(self, completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Grade]:
        golds = [_gold(row["answer"]) for row in rows]
        grades: dict[int, Grade] = {}
        open_questions: dict[int, tuple[str, str]] = {}
        for index, (completion, gold) in enumerate(zip(completions, golds)):
            found = self._decide(completion, gold)
            if isinstance(found, Grade):
                grades[index] = found
            else:
                open_questions[index] = (gold, found)
        outcomes = self._pool().run(
            same_answer, list(open_questions.values()), deadline=self.deadline, batch_deadline=self.batch_deadline
        )
        for (index, (_, answer)), outcome in zip(open_questions.items(), outcomes):
            grades[index] = _verdict(outcome, answer)
        return [grades[index] for index in range(len(completions))]

    @override
    def warm_up(self) -> None:
        self._pool().warm_up()

    def _pool(self) -> WorkerPool:
        return shared_pool(self.workers, prepare, _MEMORY_LIMIT)

    def _decide(self, completion: str, gold: str) -> Grade | str:
        """The verdict where text and plain numbers tell it, else the answer in canonical spelling."""
        region = find_answer(completion, self.answer_format)
        if region is None:
            return Grade(correct=False, score=0.0, answer=None, reason="no complete answer tag or box")
        if not 0 < len(region) <= MAX_LENGTH:
            return _judged(False, region, "longer than an answer can be" if region else "the answer is empty")
        answer = committed_value(region)
        if same_text(gold, canonical(region)) or (answer is not None and same_text(gold, answer)):
            return _judged(True, region, "the same text")
        if answer is None:
            return _judged(False, region, "several values, or none")
        numbers = exact_number(gold), exact_number(answer)
        if None not in numbers:
            same = numbers[0] == numbers[1]
            return _judged(same, answer, "the same number" if same else "another number")
        return answer


def _gold(answer: Any) -> str:
    text = str(answer) if isinstance(answer, str | int | float) and not isinstance(answer, bool) else ""
    box = last_box(text)
    gold = canonical((text if box is None else box)[:MAX_LENGTH])
    if not gold:
        raise UserInputError(f"answer {answer!r} must be a number or a text with a value")
    return gold


def _judged(correct: bool, answer: str, reason: str) -> Grade:
    return Grade(correct=correct, score=float(correct), answer=answer[:64], reason=reason)


def _verdict(outcome: Outcome, answer: str) -> Grade:
    if outcome.failure is None:
        return _judged(outcome.value, answer, "the same value" if outcome.value else "another value")
    # An answer that takes for ever to compare is no right one; a process that died says nothing about it.
    correct = False if outcome.failure == "overdue" else None
    return Grade(correct=correct, score=None, answer=answer[:64], reason=outcome.reason)
