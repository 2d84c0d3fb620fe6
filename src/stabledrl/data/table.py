"""The user's own rows: a table with a prompt per row, and whatever columns the rewards need."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from stabledrl.data.contamination import normalize
from stabledrl.data.dataset_task import DatasetTask
from stabledrl.data.sources import DataPath, Source
from stabledrl.errors import UserInputError
from stabledrl.protocols import RewardFunction, Split
from stabledrl.rewards.scoring import required_columns


class Table(DatasetTask):
    """Rows of JSON lines, CSV, Parquet or a hub data set, with a `prompt` and further columns that the rewards get.

    Args:
        source: Training rows: files, a directory or a hub id. None makes the task one for evaluation alone.
        evaluation_source: Held-out rows; None takes `evaluation_split` of `source`, or a share of its training rows.
        held_out_share: Share of the training rows that is held out, by a hash of the prompt: the same prompt is always
            on the same side.
        rewards: The first one decides accuracy.
        reward_weights: One per reward.
        columns: New name of a column -> its name in the data, such as {prompt: question, answer: gold}.
        template: Text around a prompt that is text; {prompt} stands for it.
        chat: Whether a prompt that is text is shown as a user's message, through the chat template.
        config: Configuration of a hub data set.
        revision: Branch, tag or commit of a hub data set; None takes the newest.
        train_split: Split of `source` to train on.
        evaluation_split: Split of the evaluation's data set.
        train_size: Training rows used, from the start; None for all.
        evaluation_size: Held-out rows used, from the start; None for all.
        name: Names the task in metrics.

    Raises:
        UserInputError: There is no source, no way to tell what is held out, or a value is out of range.
    """

    def __init__(
        self,
        source: DataPath | None = None,
        evaluation_source: DataPath | None = None,
        *,
        rewards: list[RewardFunction],
        reward_weights: list[float] | None = None,
        held_out_share: float | None = None,
        columns: dict[str, str] | None = None,
        template: str = "{prompt}",
        chat: bool = False,
        config: str | None = None,
        revision: str | None = None,
        train_split: str = "train",
        evaluation_split: str = "test",
        train_size: int | None = None,
        evaluation_size: int | None = None,
        name: str = "table",
    ) -> None:
        if "{prompt}" not in template:
            raise UserInputError(f"template {template!r} must hold {{prompt}}")
        if held_out_share is not None and not 0 < held_out_share < 1:
            raise UserInputError(f"held_out_share {held_out_share} must lie between 0 and 1")
        configs = () if config is None else (config,)
        paths = (source, train_split), (evaluation_source, evaluation_split)
        train, held_out = (
            None if path is None else Source(path=path, split=split, configs=configs, revision=revision)
            for path, split in paths
        )
        sources = _sources(train, held_out, evaluation_split, held_out_share)
        super().__init__(name, sources, {"train": train_size, "evaluation": evaluation_size}, rewards, reward_weights)
        self.held_out_share = held_out_share
        self.columns = columns or {}
        self.template = template
        self.chat = chat

    @override
    def expected_columns(self, split: Split) -> set[str]:
        wanted = {"prompt"}.union(*map(required_columns, self.rewards))
        return {self.columns.get(name, name) for name in wanted}

    @override
    def select(self, records: list[dict[str, Any]], split: Split) -> list[dict[str, Any]]:
        if self.held_out_share is None:
            return records
        prompts = [record[self.columns.get("prompt", "prompt")] for record in records]
        held_out = [_position(prompt) < self.held_out_share for prompt in prompts]
        chosen = [record for record, out in zip(records, held_out) if out == (split == "evaluation")]
        if not chosen:
            raise UserInputError(
                f"task {self.name!r} has no row left of {len(records)} for {split} after the filter held_out_share "
                f"{self.held_out_share}"
            )
        return chosen

    @override
    def make_row(self, record: Mapping[str, Any]) -> dict[str, Any]:
        taken = set(self.columns.values())
        row = {name: value for name, value in record.items() if name not in taken}
        row.update({new: record[old] for new, old in self.columns.items()})
        if isinstance(row["prompt"], str):
            text = self.template.replace("{prompt}", row["prompt"])
            row["prompt"] = [{"role": "user", "content": text}] if self.chat else text
        return row


def _sources(
    train: Source | None, held_out: Source | None, evaluation_split: str, share: float | None
) -> dict[Split, Sequence[Source]]:
    """What each split is read from: the one way of holding out that was chosen."""
    if train is not None and held_out is None and (share is not None or train.has_splits):
        held_out = train if share is not None else replace(train, split=evaluation_split)
    elif held_out is None or share is not None:
        raise UserInputError(
            f"source {train}, evaluation_source {held_out} and held_out_share {share} do not tell what is held out: "
            f"give a source and either an evaluation_source or a held_out_share"
        )
    return {"evaluation": [held_out]} if train is None else {"train": [train], "evaluation": [held_out]}


def _position(prompt: Any) -> float:
    """Where between 0 and 1 a prompt lies, the same for the same words."""
    digest = hashlib.sha256(normalize(prompt).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
