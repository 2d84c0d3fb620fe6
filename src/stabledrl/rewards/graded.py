"""Rewards that explain themselves."""

import os
import traceback
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.grade import Grade, Reward


class RewardError(RuntimeError):
    """A reward raised; the message names it, the samples it was given, and where in its code that was.

    Args:
        message: One line.
        details: The traceback, without our own calls around the reward.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details

    @classmethod
    def of(cls, name: str, error: BaseException, samples: str, shown: str) -> "RewardError":
        """Describes an exception.

        Args:
            name: Of the reward.
            error: What it raised.
            samples: Which samples it was given.
            shown: The text of the first.

        Returns:
            The error to raise from `error`.
        """
        frames = traceback.extract_tb(error.__traceback__)
        package = os.path.dirname(__file__)
        own = next((index for index, frame in enumerate(frames) if os.path.dirname(frame.filename) != package), 0)
        innermost = frames[-1]
        message = (
            f"reward {name} raised {error!r} on {samples}: {shown[:200]!r}; "
            f"at {innermost.filename}:{innermost.lineno}, in {innermost.name}"
        )
        details = [*traceback.format_list(frames[own:]), *traceback.format_exception_only(error)]
        return cls(message, "".join(details).rstrip())


class GradedReward(Reward):
    """A reward with a verdict per completion: the same one in training and in evaluation."""

    @abstractmethod
    def grade(self, completion: str, /, **row: Any) -> Grade:
        """Judges one completion.

        Args:
            completion: Its text.
            **row: Columns of its row. Those the signature names are required of the data set.

        Returns:
            The verdict.
        """
        ...

    def grade_batch(self, completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Grade]:
        """Judges many completions; override it where that is faster than one by one.

        Args:
            completions: Their texts.
            rows: The columns of each one's row.

        Returns:
            A verdict per completion.
        """
        return grade_each(self.grade, completions, rows, type(self).__name__)

    def warm_up(self) -> None:
        """Begins what makes the first batch slow, without waiting for it."""

    @override
    def __call__(self, prompts: list[Any], completions: list[Any], **columns: list[Any]) -> list[float | None]:
        rows = [{name: values[index] for name, values in columns.items()} for index in range(len(completions))]
        return [grade.score for grade in self.grade_batch([completion_text(text) for text in completions], rows)]


def grade_each(
    grade: Callable[..., Grade], completions: Sequence[str], rows: Sequence[Mapping[str, Any]], name: str
) -> list[Grade]:
    """Has completions judged one by one.

    Args:
        grade: Judges one.
        completions: Their texts.
        rows: The columns of each one's row.
        name: Of the reward.

    Returns:
        A verdict per completion.

    Raises:
        UserInputError: A column cannot be used.
        RewardError: The grader raises anything else.
    """
    verdicts = []
    for index, (completion, row) in enumerate(zip(completions, rows)):
        try:
            verdicts.append(grade(completion, **row))
        except UserInputError:
            raise
        except (Exception, SystemExit) as error:
            raise RewardError.of(name, error, f"sample {index}", completion) from error
    return verdicts


def completion_text(completion: Any) -> str:
    """The text of a completion in TRL's convention: a text, or a list of chat messages."""
    if isinstance(completion, str):
        return completion
    return "".join(str(message["content"]) for message in completion)
