"""Rewards the shape of a completion, whatever its content."""

import re
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.grade import Grade
from stabledrl.rewards.graded import GradedReward

_NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)


class FormatTags(GradedReward):
    """Right is a completion that consists of the tags' blocks in order, <think>...</think><answer>...</answer>.

    Between the blocks and around them only white space may stand, in each must be something else, and no tag may occur
    twice. That scores 1. Everything else scores `partial_score` times the share of the tags, opening and closing ones,
    that occur exactly once.

    Args:
        tags: Names of the tags, in order.
        partial_score: Score of a completion that has every tag once but not the shape.

    Raises:
        UserInputError: There is no tag, one is no name or occurs twice; or `partial_score` is not in [0, 1).
    """

    def __init__(self, tags: Sequence[str] = ("think", "answer"), partial_score: float = 0.5) -> None:
        names = [tags] if isinstance(tags, str) else list(tags)
        if not names or len(set(names)) < len(names) or not all(_NAME.fullmatch(name) for name in names):
            raise UserInputError(f"tags {names} must be different names without brackets, such as think and answer")
        if not 0 <= partial_score < 1:
            raise UserInputError(f"partial_score {partial_score} must be at least 0 and below 1")
        self.tags = names
        self.partial_score = partial_score

    @override
    def grade(self, completion: str, /, **row: Any) -> Grade:
        """Judges a completion's shape.

        Args:
            completion: Its text.
            **row: Its columns, ignored.

        Returns:
            The verdict; it holds no answer.
        """
        marks = [mark for name in self.tags for mark in (f"<{name}>", f"</{name}>")]
        once = [completion.count(mark) == 1 for mark in marks]
        problem = self._problem(completion, marks, once)
        if problem is None:
            return Grade(correct=True, score=1.0, answer=None, reason="well-formed")
        return Grade(correct=False, score=self.partial_score * sum(once) / len(once), answer=None, reason=problem)

    def _problem(self, completion: str, marks: Sequence[str], once: Sequence[bool]) -> str | None:
        for mark, found in zip(marks, once):
            if not found:
                return f"{mark} is missing" if mark not in completion else f"{mark} occurs more than once"
        rest = completion
        for mark in marks:
            before, found_mark, rest = rest.partition(mark)
            if not found_mark:
                return "the tags are in another order"
            if (before.strip() == "") is mark.startswith("</"):
                return f"nothing before {mark}" if mark.startswith("</") else f"text before {mark}"
        return f"text after {marks[-1]}" if rest.strip() else None
