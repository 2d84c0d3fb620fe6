"""Rewards that explain themselves."""

from abc import abstractmethod
from typing import Any

from typing_extensions import override

from stabledrl.grade import Grade, Reward


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

    @override
    def __call__(self, prompts: list[Any], completions: list[Any], **columns: list[Any]) -> list[float | None]:
        rows = ({name: values[index] for name, values in columns.items()} for index in range(len(completions)))
        return [self.grade(completion_text(completion), **row).score for completion, row in zip(completions, rows)]


def completion_text(completion: Any) -> str:
    """The text of a completion in TRL's convention: a text, or a list of chat messages."""
    if isinstance(completion, str):
        return completion
    return "".join(str(message["content"]) for message in completion)
