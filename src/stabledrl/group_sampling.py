"""Samples and grades a group of completions per prompt, shared by the processes of a run."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stabledrl.flat_groups import FlatGroups, flat_rows
from stabledrl.generation import Prompts, generate, grade
from stabledrl.processes import Processes
from stabledrl.protocols import Denoiser, Sampler, Task
from stabledrl.randomness import row_keys
from stabledrl.types import Sample, Sequences, Vocabulary


@dataclass(frozen=True, kw_only=True)
class SampledGroups:
    """Graded completions: on the CPU, a group's side by side.

    Attributes:
        sequences: N rows.
        samples: Their texts, N.
        seconds: Wall-clock time the sampling took.
        resampled: Groups that were drawn anew.
    """

    sequences: Sequences
    samples: list[Sample]
    seconds: float
    resampled: int = 0

    @property
    def rewards(self) -> Tensor:
        """(N,) float32, NaN where no reward could be given."""
        rewards = [float("nan") if sample.reward is None else sample.reward for sample in self.samples]
        return torch.tensor(rewards, dtype=torch.float32)

    def with_rows(self, rows: Tensor, other: "SampledGroups") -> "SampledGroups":
        """Puts the rows of another one in the place of the given rows."""
        order = torch.arange(len(self.samples))
        order[rows] = len(self.samples) + torch.arange(len(rows))
        samples = [*self.samples, *other.samples]
        return SampledGroups(
            sequences=Sequences.cat([self.sequences, other.sequences]).select(order),
            samples=[samples[row] for row in order.tolist()],
            seconds=self.seconds + other.seconds,
            resampled=self.resampled,
        )


@dataclass(frozen=True, kw_only=True)
class GroupSampler:
    """Samples groups.

    Attributes:
        sampler: Decodes completions.
        tasks: Tasks by name.
        tokenizer: Decodes token ids.
        vocabulary: Special ids and candidates.
        group_size: Completions per prompt.
        temperature: Sampling temperature.
        seed: Seed of the run.
        rows_per_forward: Bounds memory; None takes all rows at once.
        flat_groups: What becomes of groups whose rewards are all equal, see `stabledrl.flat_groups`.
        max_resamples: How often such a group is drawn anew at most, for `resample`.
    """

    sampler: Sampler
    tasks: Mapping[str, Task]
    tokenizer: Any
    vocabulary: Vocabulary
    group_size: int
    temperature: float
    seed: int
    rows_per_forward: int | None = None
    flat_groups: FlatGroups = "keep"
    max_resamples: int = 2

    def __call__(
        self, forward: Denoiser, prompts: Prompts, *, rollout_index: int, rollback_count: int, processes: Processes
    ) -> SampledGroups:
        """Samples and grades a completion for every row of repeated prompts; flat groups again, where asked for.

        Args:
            forward: The policy, ready for any number of forward passes.
            prompts: N rows, each prompt `group_size` times, the same on all processes.
            rollout_index: Number of the rollout within the run.
            rollback_count: How often the run has been rolled back.
            processes: Each takes a share of the rows.

        Returns:
            The samples of all processes.

        Raises:
            ProcessFailedError: Another process failed to sample or grade.
        """
        run = (self.seed, rollout_index, rollback_count)
        sampled = self._sample_all(forward, prompts, run, processes)
        if self.flat_groups != "resample":
            return sampled
        resampled = 0
        for attempt in range(1, self.max_resamples + 1):
            rows = flat_rows(sampled.rewards, self.group_size)
            if not len(rows):
                break
            resampled = max(resampled, len(rows) // self.group_size)
            again = prompts.select(rows.tolist())
            # Sample indices of their own make draws of their own.
            again = replace(again, sample_index=again.sample_index + attempt * self.group_size)
            sampled = sampled.with_rows(rows, self._sample_all(forward, again, run, processes))
        return replace(sampled, resampled=resampled)

    def _sample_all(
        self, forward: Denoiser, prompts: Prompts, run: tuple[int, int, int], processes: Processes
    ) -> SampledGroups:
        """Every process samples an equal share; the first row fills up what does not go round."""
        count = len(prompts.prompt_id)
        filled = [*range(count), *[0] * (-count % processes.count)]
        own = prompts.select(filled[processes.share(len(filled))])
        seed, rollout_index, rollback_count = run
        keys = row_keys(seed, rollout_index, own.prompt_id, own.sample_index, rollback_count)
        subject = rollout_subject(rollout_index, own)
        parts = processes.together(lambda: self._sample(forward, own, keys), subject)
        return SampledGroups(
            sequences=Sequences.cat([part.sequences for part in parts]).select(slice(0, count)),
            samples=[sample for part in parts for sample in part.samples][:count],
            # The slowest process decides how fast all are.
            seconds=max(part.seconds for part in parts),
        )

    def _sample(self, forward: Denoiser, prompts: Prompts, keys: Tensor) -> SampledGroups:
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
        return SampledGroups(sequences=sequences, samples=samples, seconds=seconds)


def rollout_subject(rollout_index: int, prompts: Prompts) -> str:
    """What a process works on, for the message of one that fails."""
    ids = ", ".join(str(number) for number in dict.fromkeys(prompts.prompt_id.tolist()))
    return f"rollout {rollout_index}, completions of prompts {ids}"
