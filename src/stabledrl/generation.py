"""Prompts in, graded completions out: what rollouts, evaluation and prediction have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from stabledrl.protocols import Denoiser, Sampler, Task
from stabledrl.rewards.scoring import score_completions
from stabledrl.types import Completions, Sample, Vocabulary


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """One entry per completion to sample.

    Attributes:
        ids: (N, P) int64, padded on the left.
        mask: (N, P) bool, False on padding.
        prompt_id: (N,) int64.
        sample_index: (N,) int64, number of the completion within its prompt's group.
        tasks: Name of each prompt's task.
        prompts: Text, or a list of chat messages.
        columns: Further columns of each prompt's row.
    """

    ids: Tensor
    mask: Tensor
    prompt_id: Tensor
    sample_index: Tensor
    tasks: Sequence[str]
    prompts: Sequence[Any]
    columns: Sequence[Mapping[str, Any]]

    @classmethod
    def from_batch(cls, batch: Mapping[str, Any], group_size: int = 1) -> "Prompts":
        """Repeats every prompt of a loader's batch `group_size` times, a group's completions side by side."""
        count = len(batch["tasks"])
        return cls(
            ids=batch["prompt_ids"].repeat_interleave(group_size, dim=0),
            mask=batch["prompt_mask"].repeat_interleave(group_size, dim=0),
            prompt_id=batch["prompt_id"].repeat_interleave(group_size),
            sample_index=torch.arange(group_size, device=batch["prompt_id"].device).repeat(count),
            tasks=[task for task in batch["tasks"] for _ in range(group_size)],
            prompts=[prompt for prompt in batch["prompts"] for _ in range(group_size)],
            columns=[row for row in batch["columns"] for _ in range(group_size)],
        )

    def select(self, rows: slice | list[int]) -> "Prompts":
        """Keeps the given rows, in the given order."""
        indices = range(len(self.tasks))[rows] if isinstance(rows, slice) else rows
        picked: dict[str, Any] = {
            field.name: value[rows] if isinstance(value, Tensor) else [value[row] for row in indices]
            for field in fields(self)
            for value in [getattr(self, field.name)]
        }
        return Prompts(**picked)


def generate(
    forward: Denoiser,
    sampler: Sampler,
    prompts: Prompts,
    *,
    vocabulary: Vocabulary,
    row_keys: Tensor,
    temperature: float,
    rows_per_forward: int | None = None,
) -> Completions:
    """Samples a completion for every prompt.

    Args:
        forward: The policy.
        sampler: How it is decoded.
        prompts: N prompts.
        vocabulary: Special ids and candidates.
        row_keys: (N,) int64.
        temperature: 0 decodes greedily.
        rows_per_forward: Bounds memory; the completions do not depend on it.

    Returns:
        N completions.
    """
    size = rows_per_forward or len(row_keys)
    parts = [
        sampler(
            forward,
            prompts.ids[start : start + size],
            prompts.mask[start : start + size],
            vocabulary=vocabulary,
            row_keys=row_keys[start : start + size],
            temperature=temperature,
        )
        for start in range(0, len(row_keys), size)
    ]
    return Completions.cat(parts)


def grade(completions: Completions, prompts: Prompts, *, tasks: Mapping[str, Task], tokenizer: Any) -> list[Sample]:
    """Decodes completions and has each one's task judge it; every reward sees a task's completions in one call.

    Args:
        completions: N completions.
        prompts: Their prompts.
        tasks: Tasks by name.
        tokenizer: Decodes token ids.

    Returns:
        N samples, in order.
    """
    kept = zip(completions.token_ids.cpu(), completions.completion_mask.cpu())
    token_ids = [ids[mask].tolist() for ids, mask in kept]
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in token_ids]
    samples: dict[int, Sample] = {}
    for name, task in tasks.items():
        rows = [row for row, own in enumerate(prompts.tasks) if own == name]
        if not rows:
            continue
        scored = score_completions(
            task.rewards,
            task.reward_weights,
            [prompts.prompts[row] for row in rows],
            [texts[row] for row in rows],
            [prompts.columns[row] for row in rows],
            completion_ids=[token_ids[row] for row in rows],
        )
        for row, reward, verdict in zip(rows, scored.rewards, scored.grades):
            samples[row] = Sample(
                task=name,
                prompt_id=int(prompts.prompt_id[row]),
                sample_index=int(prompts.sample_index[row]),
                prompt=_text(prompts.prompts[row]),
                completion=texts[row],
                reward=reward,
                correct=verdict.correct,
                answer=verdict.answer,
                reason=verdict.reason,
                length=len(token_ids[row]),
            )
    return [samples[row] for row in range(len(texts))]


def _text(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)
