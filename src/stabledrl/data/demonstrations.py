"""Demonstrations for supervised training: prompts with completions, in an order that depends on the step alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from typing_extensions import override

from stabledrl.data.encoding import encode_prompt, encode_text, special_ids
from stabledrl.errors import UserInputError
from stabledrl.processes import Processes
from stabledrl.protocols import Task
from stabledrl.randomness import Purpose, row_keys, uniforms
from stabledrl.types import Vocabulary


class DemonstrationDataModule(LightningDataModule):
    """Streams a task's training rows with the completions they demonstrate.

    From `weak_from_step` on, a share of the rows shows the task's `weak_completion` instead: a teacher that is often
    wrong. It makes a start for reinforcement learning that knows more than it shows.

    Several processes share every batch evenly; what is trained does not depend on their number.

    Args:
        task: A task whose rows have a `completion`.
        completion_length: Tokens of a completion, padded with the mask token after the end token.
        batch_size: Demonstrations per step, of all processes together.
        weak_from_step: First step with weak demonstrations; None shows none.
        weak_share: Share of weak demonstrations from then on.
        seed: Seed of the order.

    Raises:
        UserInputError: A value is out of range, or the task has no demonstrations.
    """

    def __init__(
        self,
        task: Task,
        completion_length: int,
        *,
        batch_size: int = 128,
        weak_from_step: int | None = None,
        weak_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 1 or completion_length < 1:
            raise UserInputError(
                f"batch_size {batch_size} and completion_length {completion_length} must be at least 1"
            )
        if not 0 <= weak_share <= 1:
            raise UserInputError(f"weak_share {weak_share} must lie between 0 and 1")
        if weak_from_step is None and weak_share > 0:
            raise UserInputError(
                f"weak_share {weak_share} has no effect without weak_from_step; set the first weak step"
            )
        if weak_from_step is not None and weak_from_step < 0:
            raise UserInputError(f"weak_from_step {weak_from_step} must be at least 0")
        self.task = task
        self.completion_length = completion_length
        self.batch_size = batch_size
        self.weak_from_step = weak_from_step
        self.weak_share = weak_share
        self.seed = seed

    @override
    def setup(self, stage: str) -> None:
        """Checks that the batch goes round, before the model is loaded."""
        count = Processes.of_run().count
        if self.batch_size % count:
            raise UserInputError(
                f"batch_size {self.batch_size} cannot be shared evenly by {count} processes; use a multiple of {count}"
            )

    @override
    def train_dataloader(self) -> "DemonstrationLoader":
        module: Any = self.trainer.lightning_module  # type: ignore[union-attr]
        rows = self.task.rows("train")
        if not rows:
            raise UserInputError(f"task {self.task.name!r} has no training rows")
        columns = ["completion"] if self.weak_from_step is None else ["completion", "weak_completion"]
        if missing := [column for column in columns if column not in rows[0]]:
            raise UserInputError(f"task {self.task.name!r} has no column {missing[0]!r}; it has {sorted(rows[0])}")
        encoded = {
            column: encode_demonstrations(rows, column, module.tokenizer, module.vocabulary, self.completion_length)
            for column in columns
        }
        own = Processes.of_run().share(self.batch_size)
        return DemonstrationLoader(encoded, self.batch_size, self.seed, self.weak_from_step, self.weak_share, own)


def encode_demonstrations(
    rows: Sequence[Mapping[str, Any]], column: str, tokenizer: Any, vocabulary: Vocabulary, completion_length: int
) -> dict[str, Tensor]:
    """Encodes prompts and completions to tensors of one row each.

    Args:
        rows: Rows with a `prompt`, text or chat, and the column.
        column: Column of the completion.
        tokenizer: The tokenizer.
        vocabulary: Special ids.
        completion_length: C.

    Returns:
        `token_ids` (R, T) int64, `attention_mask` (R, T) bool and `completion_mask` (R, C) bool.

    Raises:
        UserInputError: A completion is longer than C.
    """
    special = special_ids(tokenizer, (vocabulary.mask_token_id, *vocabulary.end_token_ids))
    prompts = [encode_prompt(tokenizer, row["prompt"], special) for row in rows]
    width = max(map(len, prompts))
    token_ids = torch.full((len(rows), width + completion_length), vocabulary.mask_token_id)
    attention_mask = torch.ones(token_ids.shape, dtype=torch.bool)
    completion_mask = torch.zeros(len(rows), completion_length, dtype=torch.bool)
    for index, (prompt, row) in enumerate(zip(prompts, rows)):
        completion = encode_text(tokenizer, row[column], special)
        if len(completion) > completion_length:
            raise UserInputError(
                f"a {column} has {len(completion)} tokens, more than completion_length {completion_length}"
            )
        # A completion that fills its length has no end token: the sampler cannot write one there either.
        completion = [*completion, vocabulary.end_token_ids[0]][:completion_length]
        token_ids[index, : width - len(prompt)] = vocabulary.pad_token_id
        attention_mask[index, : width - len(prompt)] = False
        token_ids[index, width - len(prompt) : width] = torch.tensor(prompt)
        token_ids[index, width : width + len(completion)] = torch.tensor(completion)
        completion_mask[index, : len(completion)] = True
    return {"token_ids": token_ids, "attention_mask": attention_mask, "completion_mask": completion_mask}


class DemonstrationLoader:
    """Endless, resumable batches; the k-th one is a function of k.

    Args:
        encoded: Tensors of `encode_demonstrations` under `completion` and, where used, `weak_completion`.
        batch_size: Rows per batch, of all processes together.
        seed: Seed of the order.
        weak_from_step: First batch with weak demonstrations; None for none.
        weak_share: Their share from then on.
        own: This process's rows of each batch; by default all.
    """

    def __init__(
        self,
        encoded: Mapping[str, Mapping[str, Tensor]],
        batch_size: int,
        seed: int,
        weak_from_step: int | None,
        weak_share: float,
        own: slice = slice(None),
    ) -> None:
        self._encoded = encoded
        self._batch_size = batch_size
        self._seed = seed
        self._weak_from_step = weak_from_step
        self._weak_share = weak_share
        self._own = own
        self._step = 0

    def __len__(self) -> int:
        """Batches per epoch: as many as show every row once on average."""
        return max(1, len(self._encoded["completion"]["token_ids"]) // self._batch_size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for _ in range(len(self) - self._step % len(self)):
            self._step += 1
            yield self._batch(self._step - 1)

    def _batch(self, step: int) -> dict[str, Tensor]:
        strong = self._encoded["completion"]
        index = torch.arange(self._batch_size)[self._own]
        keys = row_keys(self._seed, step, torch.zeros_like(index), index)
        draws = uniforms(keys, Purpose.DEMONSTRATION, 0, 2)
        rows = (draws[:, 0] * len(strong["token_ids"])).long()
        weak = draws[:, 1:] < self._weak_share
        batch = {name: tensor[rows] for name, tensor in strong.items()}
        if self._weak_from_step is not None and step >= self._weak_from_step:
            shown = self._encoded["weak_completion"]
            batch = {name: torch.where(weak, shown[name][rows], tensor) for name, tensor in batch.items()}
        return {**batch, "prompt_id": rows, "sample_index": index, "step": torch.tensor(step)}

    def state_dict(self) -> dict[str, int]:
        """Batches handed out so far."""
        return {"step": self._step}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Goes on after the batches that were handed out."""
        self._step = state_dict["step"]
