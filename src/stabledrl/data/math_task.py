"""The base of mathematical tasks: a problem in words, an answer that `MathAnswer` grades."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from stabledrl.data.dataset_task import DatasetTask
from stabledrl.data.sources import Source
from stabledrl.data.sudoku import PromptStyle
from stabledrl.errors import UserInputError
from stabledrl.protocols import RewardFunction, Split
from stabledrl.rewards import MathAnswer

INSTRUCTION = (
    "{problem}\n\nReason step by step between <think> and </think>. Then give the final answer alone, without "
    "units, between <answer> and </answer>."
)
COMPACT = "{problem}\nAnswer: "


class MathTask(DatasetTask):
    """Rows with the columns `problem` and `answer` (the gold answer as text), and what else the data set tells.

    Args:
        name: Names the task in metrics.
        sources: What each split is read from; an absent one has no rows.
        train_size: Training rows used, from the start; None for all.
        evaluation_size: Held-out rows used, from the start; None for all.
        prompt_style: `instruction` is a chat that asks for <answer> tags; `compact` is plain text, answered by the bare
            answer.
        template: Instead of the style's text around a problem; {problem} stands for it.
        rewards: Instead of `MathAnswer` alone.
        reward_weights: One per reward.

    Raises:
        UserInputError: A value is out of range.
    """

    def __init__(
        self,
        name: str,
        sources: Mapping[Split, Sequence[Source]],
        *,
        train_size: int | None = None,
        evaluation_size: int | None = None,
        prompt_style: PromptStyle = "instruction",
        template: str | None = None,
        rewards: list[RewardFunction] | None = None,
        reward_weights: list[float] | None = None,
    ) -> None:
        if template is not None and "{problem}" not in template:
            raise UserInputError(f"template {template!r} must hold {{problem}}")
        grader = MathAnswer(answer_format="bare" if prompt_style == "compact" else "tags")
        sizes: dict[Split, int | None] = {"train": train_size, "evaluation": evaluation_size}
        super().__init__(name, sources, sizes, [grader] if rewards is None else rewards, reward_weights)
        self.prompt_style = prompt_style
        self.template = template or (COMPACT if prompt_style == "compact" else INSTRUCTION)

    @abstractmethod
    def gold(self, record: Mapping[str, Any]) -> str | None:
        """The gold answer of a record; None if it states none."""
        ...

    def problem(self, record: Mapping[str, Any]) -> str:
        """The problem of a record."""
        return str(record["problem"])

    @override
    def make_row(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        answer = self.gold(record)
        if answer is None:
            return None
        problem = self.problem(record)
        text = self.template.replace("{problem}", problem)
        compact = self.prompt_style == "compact"
        return {
            "prompt": text if compact else [{"role": "user", "content": text}],
            "problem": problem,
            "answer": answer,
            "completion": answer if compact else f"<answer>{answer}</answer>",
        }


def split_sources(
    source: Source, evaluation_source: Source | None, *, evaluation_split: str
) -> dict[Split, Sequence[Source]]:
    """Both splits of a data set, or a training and an evaluation set of their own.

    Args:
        source: What training reads.
        evaluation_source: What evaluation reads; None takes `evaluation_split` of the training set.
        evaluation_split: Name of that split.

    Returns:
        Sources by split.

    Raises:
        UserInputError: The training set is files, which have no further split.
    """
    if evaluation_source is None:
        if not source.has_splits:
            raise UserInputError(f"source {source} is all training rows; name the held-out ones by evaluation_source")
        evaluation_source = replace(source, split=evaluation_split)
    return {"train": [source], "evaluation": [evaluation_source]}
