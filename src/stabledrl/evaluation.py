"""Grades a policy on held-out prompts. One code path for evaluation during training, `validate` and `test`."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torchmetrics import MeanMetric

from stabledrl.generation import Prompts, generate, grade
from stabledrl.protocols import Denoiser, Sampler, Task
from stabledrl.randomness import row_keys
from stabledrl.types import Sample, Vocabulary

EVALUATION_ROLLOUT = -1
"""The rollout index of evaluation's random keys: its draws repeat none of training's."""


@torch.no_grad()
def evaluate_batch(
    batch: Mapping[str, Any],
    forward: Denoiser,
    sampler: Sampler,
    *,
    tasks: Mapping[str, Task],
    tokenizer: Any,
    vocabulary: Vocabulary,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[Sample]:
    """Samples and grades one completion per prompt; the result for a prompt does not depend on the batch it is in.

    Args:
        batch: Prompts as an evaluation loader yields them.
        forward: The policy.
        sampler: Decodes completions.
        tasks: Tasks by name.
        tokenizer: Decodes token ids.
        vocabulary: Special ids and candidates.
        temperature: 0 decodes greedily.
        seed: Seed of random remasking and of temperatures above 0.

    Returns:
        A sample per prompt.
    """
    prompts = Prompts.from_batch(batch)
    keys = row_keys(seed, EVALUATION_ROLLOUT, prompts.prompt_id, prompts.sample_index)
    completions = generate(forward, sampler, prompts, vocabulary=vocabulary, row_keys=keys, temperature=temperature)
    return grade(completions, prompts, tasks=tasks, tokenizer=tokenizer)


class TaskScores:
    """Accuracy and mean score per task, accumulated over batches (and over processes, by torchmetrics).

    Args:
        tasks: Names of the tasks.
        device: Where the sums live.
    """

    def __init__(self, tasks: Iterable[str], device: torch.device | str = "cpu") -> None:
        self._accuracy = {name: MeanMetric().to(device) for name in tasks}
        self._score = {name: MeanMetric().to(device) for name in tasks}

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
