"""Grades a policy on held-out prompts. One code path for evaluation during training, `validate`, `test`, `predict`."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MeanMetric

from stabledrl.generation import Prompts, generate, grade
from stabledrl.processes import Processes
from stabledrl.protocols import Denoiser, Sampler, Task
from stabledrl.randomness import row_keys
from stabledrl.types import Sample, Vocabulary

EVALUATION_ROLLOUT = -1
"""The rollout index of evaluation's random keys: its draws repeat none of training's."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedBatch:
    """Graded completions, and what it took to sample them.

    Attributes:
        samples: A sample per completion, a prompt's side by side.
        steps: Denoising steps of the whole batch: its forward passes, a cache's reading of the prompts among them.
        seconds: Wall-clock time of the sampling, grading left out.
    """

    samples: list[Sample]
    steps: int
    seconds: float


class _Counted:
    """A policy whose forward passes are counted."""

    def __init__(self, forward: Denoiser) -> None:
        self.module = forward
        self.passes = 0

    def __call__(self, *arguments: Any, **options: Any) -> Tensor:
        self.passes += 1
        return self.module(*arguments, **options)


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Samples completions of held-out prompts and grades them.

    Attributes:
        tasks: Tasks by name.
        tokenizer: Decodes token ids.
        vocabulary: Special ids and candidates.
        samples_per_prompt: Completions per prompt, sampled as many at a time as there are prompts.
        temperature: 0 decodes greedily.
        seed: Seed of random remasking and of temperatures above 0.
    """

    tasks: Mapping[str, Task]
    tokenizer: Any
    vocabulary: Vocabulary
    samples_per_prompt: int = 1
    temperature: float = 0.0
    seed: int = 0

    def evaluate(
        self,
        batch: Mapping[str, Any],
        forward: Denoiser,
        sampler: Sampler,
        processes: Processes = Processes(),  # noqa: B008  # immutable: this process alone
    ) -> EvaluatedBatch:
        """Evaluates a batch; what comes out for a prompt does not depend on the other prompts or on the processes.

        Args:
            batch: Prompts as an evaluation loader yields them, the same on all processes.
            forward: The policy; its forward passes wait for no other process.
            sampler: Decodes completions.
            processes: They share the prompts.

        Returns:
            The samples of all processes in the order of the prompts, every prompt's once; steps and seconds are those
            of the process with the most.

        Raises:
            ProcessFailedError: Another process failed to sample or grade.
        """
        total, size = len(batch["tasks"]), self.samples_per_prompt
        first, end = (total * rank // processes.count for rank in (processes.rank, processes.rank + 1))
        # Without a prompt of its own a process goes along with the first one: a first pass may gather weights.
        rows = slice(first * size, end * size) if first < end else slice(0, size)
        prompts = Prompts.from_batch(batch, size).select(rows)
        ids = ", ".join(str(number) for number in dict.fromkeys(prompts.prompt_id.tolist()))

        def work() -> EvaluatedBatch:
            own = self._evaluate(prompts, forward, sampler)
            return own if first < end else replace(own, samples=[])

        parts = processes.together(work, f"evaluation of prompts {ids}")
        return EvaluatedBatch(
            samples=[sample for part in parts for sample in part.samples],
            steps=max(part.steps for part in parts),
            seconds=max(part.seconds for part in parts),
        )

    @torch.no_grad()
    def _evaluate(self, prompts: Prompts, forward: Denoiser, sampler: Sampler) -> EvaluatedBatch:
        counting, started = _Counted(forward), time.perf_counter()
        completions = generate(
            counting,
            sampler,
            prompts,
            vocabulary=self.vocabulary,
            row_keys=row_keys(self.seed, EVALUATION_ROLLOUT, prompts.prompt_id, prompts.sample_index),
            temperature=self.temperature,
            rows_per_forward=len(prompts.tasks) // self.samples_per_prompt,
        )
        # Off the device before the clock is read, which waits for all that was queued there.
        completions = completions.to("cpu")
        seconds = time.perf_counter() - started
        samples = grade(completions, prompts, tasks=self.tasks, tokenizer=self.tokenizer)
        return EvaluatedBatch(samples=samples, steps=counting.passes, seconds=seconds)


class TaskScores:
    """Accuracy and mean score per task, accumulated over batches.

    Args:
        tasks: Names of the tasks.
    """

    def __init__(self, tasks: Iterable[str]) -> None:
        # Every process adds the samples of all.
        self._accuracy = {name: MeanMetric(sync_on_compute=False) for name in tasks}
        self._score = {name: MeanMetric(sync_on_compute=False) for name in self._accuracy}

    def update(self, samples: Iterable[Sample]) -> None:
        """Adds samples. A completion without verdict counts as wrong; one without reward is left out of the score."""
        for sample in samples:
            self._accuracy[sample.task].update(float(sample.correct is True))
            if sample.reward is not None:
                self._score[sample.task].update(sample.reward)

    def compute(self, prefix: str) -> dict[str, float]:
        """`<prefix>/<task>/accuracy` and `<prefix>/<task>/reward` of every task that was seen."""
        result = {}
        for name, accuracy in self._accuracy.items():
            if accuracy.update_called:
                result[f"{prefix}/{name}/accuracy"] = accuracy.compute().item()
            if self._score[name].update_called:
                result[f"{prefix}/{name}/reward"] = self._score[name].compute().item()
        return result
