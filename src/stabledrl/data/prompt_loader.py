"""Batches of prompts as a function of their number, so that a resumed run continues where it stopped."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stabledrl.data.encoding import EncodedPrompt
from stabledrl.data.mixing import TaskMixture
from stabledrl.errors import UserInputError
from stabledrl.randomness import Purpose, fold, uniforms


class PromptLoader:
    """Yields every batch of prompts once per slot; sized and stateful, without workers or global random state.

    Every process gets the whole batch: which of its completions it samples is `GroupRollout`'s to decide.

    Batch k belongs to rollout k // slots and slot k % slots. The order of the prompts is a permutation keyed by (seed,
    epoch); the last incomplete batch of an epoch is left out.

    Args:
        prompts: The encoded prompts.
        prompts_per_rollout: P.
        slots: How often each batch is handed out: updates per rollout times micro-batches.
        seed: Seed of the order.
        pad_token_id: Fills prompts on the left.
        task_weights: Share of each task in every rollout, see `TaskMixture`; None shuffles all prompts together.

    Raises:
        UserInputError: There are fewer prompts than one batch needs, or the weights do not fit.
    """

    def __init__(
        self,
        prompts: Sequence[EncodedPrompt],
        prompts_per_rollout: int,
        slots: int,
        seed: int,
        pad_token_id: int,
        task_weights: Mapping[str, float] | None = None,
    ) -> None:
        if len(prompts) < prompts_per_rollout:
            raise UserInputError(
                f"prompts_per_rollout {prompts_per_rollout} is more than the {len(prompts)} prompts there are"
            )
        self._prompts = prompts
        self._size = prompts_per_rollout
        self._slots = slots
        self._seed = seed
        self._pad_token_id = pad_token_id
        self._position = 0
        self._task_weights = None if task_weights is None else dict(task_weights)
        self._mixture: TaskMixture | None = None
        if task_weights is not None:
            tasks = [prompt.task for prompt in prompts]
            self._mixture = TaskMixture(tasks, task_weights, prompts_per_rollout, seed)

    @property
    def _rollouts_per_epoch(self) -> int:
        return len(self._prompts) // self._size

    def __len__(self) -> int:
        """Batches per epoch, each slot counted."""
        return self._rollouts_per_epoch * self._slots

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(len(self) - self._position % len(self)):
            # Before the yield: a checkpoint written while this batch is in use continues with the next.
            self._position += 1
            yield self._batch(self._position - 1)

    def _batch(self, position: int) -> dict[str, Any]:
        rollout_index, slot = divmod(position, self._slots)
        return {
            **collate([self._prompts[index] for index in self._rows(rollout_index)], self._pad_token_id),
            "rollout_index": torch.tensor(rollout_index),
            "slot": torch.tensor(slot),
            "slots": torch.tensor(self._slots),
        }

    def _rows(self, rollout_index: int) -> list[int]:
        """Numbers of a rollout's prompts."""
        if self._mixture is not None:
            return self._mixture(rollout_index)
        epoch, within = divmod(rollout_index, self._rollouts_per_epoch)
        rows: list[int] = self._order(epoch)[within * self._size : (within + 1) * self._size].tolist()
        return rows

    def _order(self, epoch: int) -> Tensor:
        key = fold(torch.tensor([self._seed]), epoch)
        return uniforms(key, Purpose.DATA, 0, len(self._prompts))[0].argsort(stable=True)

    def state_dict(self) -> dict[str, Any]:
        """Batches handed out so far, and what their numbers mean."""
        return {"position": self._position, **self._shape()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on after the batches that were handed out.

        Raises:
            UserInputError: The state is of another number of prompts or of slots, or of other weights.
        """
        changed = [
            f"{name} is {own} and was {state_dict.get(name)}"
            for name, own in self._shape().items()
            if state_dict.get(name) != own
        ]
        if changed:
            raise UserInputError(
                f"the checkpoint's place in the data is that of another configuration ({'; '.join(changed)}); "
                f"resume with what it was"
            )
        self._position = state_dict["position"]

    def _shape(self) -> dict[str, Any]:
        return {
            "prompts": len(self._prompts),
            "prompts_per_rollout": self._size,
            "slots": self._slots,
            "task_weights": self._task_weights,
        }


class EvaluationLoader:
    """All prompts in order, once; a batch holds prompts of one task. Not a DataLoader, so that Lightning leaves it be.

    Every process gets the whole batch: which of its prompts it completes is `stabledrl.evaluation`'s to decide.

    Args:
        prompts: The encoded prompts, a task's side by side.
        batch_size: Prompts per batch; a task's last one may have fewer.
        pad_token_id: Fills prompts on the left.
    """

    def __init__(self, prompts: Sequence[EncodedPrompt], batch_size: int, pad_token_id: int) -> None:
        self._batches = [
            own[start : start + batch_size]
            for own in (list(group) for _, group in itertools.groupby(prompts, key=lambda prompt: prompt.task))
            for start in range(0, len(own), batch_size)
        ]
        self._pad_token_id = pad_token_id

    def __len__(self) -> int:
        """Batches."""
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for prompts in self._batches:
            yield collate(prompts, self._pad_token_id)


def collate(prompts: Sequence[EncodedPrompt], pad_token_id: int) -> dict[str, Any]:
    """Joins prompts to a batch, padded on the left.

    Args:
        prompts: P prompts.
        pad_token_id: Fills up.

    Returns:
        `prompt_ids` (P, T) int64, `prompt_mask` (P, T) bool, `prompt_id` (P,) int64, and the lists `prompts`, `columns`
        and `tasks`.
    """
    width = max(len(prompt.token_ids) for prompt in prompts)
    ids = torch.full((len(prompts), width), pad_token_id)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        start = width - len(prompt.token_ids)
        ids[row, start:] = torch.tensor(prompt.token_ids)
        mask[row, start:] = True
    return {
        "prompt_ids": ids,
        "prompt_mask": mask,
        "prompt_id": torch.tensor([prompt.prompt_id for prompt in prompts]),
        "prompts": [prompt.prompt for prompt in prompts],
        "columns": [dict(prompt.columns) for prompt in prompts],
        "tasks": [prompt.task for prompt in prompts],
    }
