"""From a batch of prompts to a `RolloutBatch`: sample groups, grade, compare within the group, score."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from stabledrl.advantages import Baseline, group_advantages
from stabledrl.errors import UserInputError
from stabledrl.generation import Prompts, generate, grade
from stabledrl.processes import Processes
from stabledrl.protocols import Denoiser, LikelihoodEstimator, Sampler, Task
from stabledrl.randomness import row_keys
from stabledrl.rollout_metrics import rollout_metrics
from stabledrl.types import (
    Corruption,
    LikelihoodEstimate,
    RolloutBatch,
    Sample,
    Sequences,
    UpdateTotals,
    Vocabulary,
)

Gathering = Callable[[Denoiser], AbstractContextManager[Denoiser]]
"""Gathers a model's weights once, for the forward passes within; all processes enter it together."""


@dataclass(frozen=True, kw_only=True)
class Experience:
    """A rollout as the update, the reader and the plots want it; the same on every process.

    Attributes:
        rollouts: The tensors, on the CPU.
        samples: The texts, a sample per row.
        metrics: Numbers named `rollout/...`.
    """

    rollouts: RolloutBatch
    samples: list[Sample]
    metrics: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class _Sampled:
    """What one process sampled and graded, and how long the sampling took."""

    sequences: Sequences
    samples: list[Sample]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ExperienceCollector:
    """Collects graded groups of completions.

    Attributes:
        sampler: Decodes completions.
        likelihood: Estimates their log-likelihood.
        tasks: Tasks by name.
        tokenizer: Decodes token ids.
        vocabulary: Special ids and candidates.
        group_size: Completions per prompt.
        temperature: Sampling temperature.
        baseline: What a reward is compared with, see `stabledrl.advantages`.
        seed: Seed of the run.
        rows_per_forward: Bounds memory; None takes all rows at once.
        max_ungraded_share: A larger share of completions without a finite reward ends the run.
    """

    sampler: Sampler
    likelihood: LikelihoodEstimator
    tasks: Mapping[str, Task]
    tokenizer: Any
    vocabulary: Vocabulary
    group_size: int
    temperature: float
    baseline: Baseline
    seed: int
    rows_per_forward: int | None = None
    max_ungraded_share: float = 0.5

    @torch.no_grad()
    def collect(
        self,
        batch: Mapping[str, Any],
        forward: Denoiser,
        *,
        reference: Denoiser | None = None,
        rollback_count: int = 0,
        processes: Processes = Processes(),  # noqa: B008  # immutable: this process alone
        gathered: Gathering = nullcontext,
    ) -> Experience:
        """Samples, grades and scores a group for every prompt of a batch.

        Every process takes its share of the completions; groups are whole on a process if the prompts go round.

        Args:
            batch: Prompts as the loader yields them, the same on all processes.
            forward: The policy; it becomes the old policy of the update.
            reference: The frozen reference, where something uses it.
            rollback_count: How often the run has been rolled back.
            processes: They share the work. What each one does may take any number of forward passes.
            gathered: Readies a model for forward passes that wait for no other process.

        Returns:
            The experience of all processes.

        Raises:
            UserInputError: Too many completions have no finite reward.
            ProcessFailedError: Another process failed to sample, grade or score.
        """
        prompts = Prompts.from_batch(batch, self.group_size)
        rollout_index = int(batch["rollout_index"])
        keys = row_keys(self.seed, rollout_index, prompts.prompt_id, prompts.sample_index, rollback_count)
        rows = processes.share(len(keys))
        own, own_keys = _select(prompts, rows), keys[rows]
        ids = ", ".join(str(number) for number in dict.fromkeys(own.prompt_id.tolist()))
        subject = f"rollout {rollout_index}, completions of prompts {ids}"
        with gathered(forward) as policy:
            parts = processes.together(lambda: self._sample(policy, own, own_keys), subject)
            sequences = Sequences.cat([part.sequences for part in parts])
            samples = [sample for part in parts for sample in part.samples]
            rewards = self._rewards(samples)
            old = self._estimates(policy, sequences, rows, keys.device, processes, subject)
        before = None
        if reference is not None:
            with gathered(reference) as frozen:
                before = self._estimates(frozen, sequences, rows, keys.device, processes, subject)
        rollouts = self._rollouts(sequences, rewards, old, before)
        samples = [
            replace(sample, advantage=advantage) for sample, advantage in zip(samples, rollouts.advantages.tolist())
        ]
        # The slowest process decides how fast all are.
        seconds = max(part.seconds for part in parts)
        return Experience(rollouts=rollouts, samples=samples, metrics=rollout_metrics(rollouts, samples, seconds))

    def _sample(self, forward: Denoiser, prompts: Prompts, keys: Tensor) -> _Sampled:
        started = time.perf_counter()
        completions = generate(
            forward,
            self.sampler,
            prompts,
            vocabulary=self.vocabulary,
            row_keys=keys,
            temperature=self.temperature,
            rows_per_forward=self.rows_per_forward,
        )
        # Off the device before the clock is read, which waits for all that was queued there.
        sequences = Sequences.join(prompts.ids, prompts.mask, completions, keys).to("cpu")
        seconds = time.perf_counter() - started
        samples = grade(completions, prompts, tasks=self.tasks, tokenizer=self.tokenizer)
        return _Sampled(sequences=sequences, samples=samples, seconds=seconds)

    def _rewards(self, samples: list[Sample]) -> Tensor:
        missing = float("nan")
        rewards = torch.tensor(
            [missing if sample.reward is None else sample.reward for sample in samples], dtype=torch.float32
        )
        if (share := int((~rewards.isfinite()).sum()) / len(samples)) > self.max_ungraded_share:
            raise UserInputError(
                f"{share:.0%} of this rollout's completions have no finite reward, more than max_ungraded_share "
                f"{self.max_ungraded_share:.0%}; first reason: {_first_reason(samples)}"
            )
        return rewards

    def _rollouts(
        self, sequences: Sequences, rewards: Tensor, old: LikelihoodEstimate, reference: LikelihoodEstimate | None
    ) -> RolloutBatch:
        groups = len(rewards) // self.group_size
        group_index = torch.arange(groups).repeat_interleave(self.group_size)
        graded = rewards.isfinite()
        return RolloutBatch(
            sequences=sequences,
            group_index=group_index,
            rewards=rewards,
            graded=graded,
            advantages=group_advantages(rewards, graded, group_index, groups, baseline=self.baseline),
            old=old,
            reference=reference,
            totals=UpdateTotals(rows=len(rewards), groups=groups, tokens=int(sequences.lengths.sum())),
        )

    def _estimates(
        self,
        forward: Denoiser,
        sequences: Sequences,
        rows: slice,
        device: torch.device,
        processes: Processes,
        subject: str,
    ) -> LikelihoodEstimate:
        """Scores this process's rows of all sequences and puts the estimates of all processes together."""
        own = sequences.select(rows).to(device)

        def work() -> LikelihoodEstimate:
            return self._score(forward, own, self.likelihood.corrupt(own, update=None)).to("cpu")

        return LikelihoodEstimate.cat(processes.together(work, subject))

    def _score(self, forward: Denoiser, sequences: Sequences, corruption: Corruption) -> LikelihoodEstimate:
        return score(
            self.likelihood,
            forward,
            sequences,
            corruption,
            vocabulary=self.vocabulary,
            rows_per_forward=self.rows_per_forward,
        )


@torch.no_grad()
def score(
    likelihood: LikelihoodEstimator,
    forward: Denoiser,
    sequences: Sequences,
    corruption: Corruption,
    *,
    vocabulary: Vocabulary,
    rows_per_forward: int | None,
) -> LikelihoodEstimate:
    """Estimates log-likelihoods without gradient, `rows_per_forward` rows at a time.

    Kept logits are dropped: only the estimate that carries the gradient needs them.

    Returns:
        The detached estimate of all rows.
    """
    size = rows_per_forward or len(sequences.row_keys)
    parts = []
    for start in range(0, len(sequences.row_keys), size):
        rows = slice(start, start + size)
        part = likelihood(forward, sequences.select(rows), corruption.select(rows), vocabulary=vocabulary)
        parts.append(replace(part, logits=None).detach())
    return LikelihoodEstimate.cat(parts)


def _select(prompts: Prompts, rows: slice) -> Prompts:
    return Prompts(**{field.name: getattr(prompts, field.name)[rows] for field in fields(prompts)})


def _first_reason(samples: list[Sample]) -> str:
    return next(sample.reason for sample in samples if sample.reward is None or sample.reward != sample.reward)
