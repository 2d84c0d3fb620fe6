"""Rewards and verdicts. Imports no torch, so that grading workers start in a fraction of a second."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Grade:
    """What a grader says about one completion.

    Attributes:
        correct: Whether the answer counts as right in an evaluation; None if no verdict could be reached.
        score: The training reward, finite; None if no verdict could be reached (the sample then leaves the baseline).
        answer: The parsed answer as text; None if the completion holds none.
        reason: A few words on why, for the sample table.
    """

    correct: bool | None
    score: float | None
    answer: str | None
    reason: str


class Reward(ABC):
    """Scores completions, in TRL's convention. A plain function with the same signature serves as well."""

    @abstractmethod
    def __call__(self, prompts: list[Any], completions: list[Any], **columns: list[Any]) -> list[float | None]:
        """Scores a batch.

        Args:
            prompts: A text, or a list of chat messages, per completion.
            completions: A text, or for a chat a list of one message, per completion.
            **columns: Each further column of the data set, a list with an entry per completion.

        Returns:
            A float per completion, None where there is no verdict.
        """
        ...


RewardFunction = Reward | Callable[..., Any]
"""A `Reward`, or a function of its signature by import path."""
