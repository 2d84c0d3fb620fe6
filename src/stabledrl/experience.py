"""From a batch of prompts to a `RolloutBatch`: sample groups, grade, compare within the group, score."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stabledrl.advantages import Baseline, group_advantages, zero_variance_groups
from stabledrl.errors import UserInputError
from stabledrl.generation import Prompts, generate, grade
from stabledrl.protocols import Denoiser, LikelihoodEstimator, Sampler, Task
from stabledrl.randomness import row_keys
from stabledrl.types import (
    Completions,
    Corruption,
    LikelihoodEstimate,
    RolloutBatch,
    Sample,
    Sequences,
    UpdateTotals,
    Vocabulary,
)


@dataclass(frozen=True, kw_only=True)
class Experience:
    """A rollout as the update, the reader and the plots want it.

    Attributes:
        rollouts: The tensors.
        samples: The texts, a sample per row.
        metrics: Numbers named `rollout/...`.
    """

    rollouts: RolloutBatch
    samples: list[Sample]
    metrics: dict[str, float]


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
    ) -> Experience:
        """Samples, grades and scores a group for every prompt of a batch.

        Args:
            batch: Prompts as the loader yields them.
            forward: The policy; it becomes the old policy of the update.
            reference: The frozen reference, where something uses it.
            rollback_count: How often the run has been rolled back.

        Returns:
            The experience, on the device of the prompts.

        Raises:
            UserInputError: Too many completions have no finite reward.
        """
        started = time.perf_counter()
        prompts = Prompts.from_batch(batch, self.group_size)
        keys = row_keys(self.seed, int(batch["rollout_index"]), prompts.prompt_id, prompts.sample_index, rollback_count)
        completions = generate(
            forward,
            self.sampler,
            prompts,
            vocabulary=self.vocabulary,
            row_keys=keys,
            temperature=self.temperature,
            rows_per_forward=self.rows_per_forward,
        )
        seconds = time.perf_counter() - started
        samples = grade(completions, prompts, tasks=self.tasks, tokenizer=self.tokenizer)
        sequences = Sequences.join(prompts.ids, prompts.mask, completions, keys)
        rollouts = self._rollouts(sequences, completions, samples, forward, reference)
        samples = [
            replace(sample, advantage=advantage) for sample, advantage in zip(samples, rollouts.advantages.tolist())
        ]
        return Experience(rollouts=rollouts, samples=samples, metrics=rollout_metrics(rollouts, samples, seconds))

    def _rollouts(
        self,
        sequences: Sequences,
        completions: Completions,
        samples: list[Sample],
        forward: Denoiser,
        reference: Denoiser | None,
    ) -> RolloutBatch:
        device = sequences.token_ids.device
        missing = float("nan")
        rewards = torch.tensor(
            [missing if sample.reward is None else sample.reward for sample in samples],
            dtype=torch.float32,
            device=device,
        )
        graded = rewards.isfinite()
        if (share := int((~graded).sum()) / len(samples)) > self.max_ungraded_share:
            raise UserInputError(
                f"{share:.0%} of this rollout's completions have no finite reward, more than max_ungraded_share "
                f"{self.max_ungraded_share:.0%}; first reason: {_first_reason(samples)}"
            )
        groups = len(samples) // self.group_size
        group_index = torch.arange(groups, device=device).repeat_interleave(self.group_size)
        advantages = group_advantages(rewards, graded, group_index, groups, baseline=self.baseline)
        corruption = self.likelihood.corrupt(sequences, update=None)
        return RolloutBatch(
            sequences=sequences,
            group_index=group_index,
            rewards=rewards,
            graded=graded,
            advantages=advantages,
            old=self._score(forward, sequences, corruption),
            reference=None if reference is None else self._score(reference, sequences, corruption),
            totals=UpdateTotals(rows=len(samples), groups=groups, tokens=int(sequences.lengths.sum())),
        )

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


def rollout_metrics(rollouts: RolloutBatch, samples: list[Sample], seconds: float) -> dict[str, float]:
    """Summarises a rollout.

    Args:
        rollouts: The rollout's tensors.
        samples: Its texts.
        seconds: Wall-clock time the sampling took.

    Returns:
        Metrics under their fixed names. Rewards are over graded completions; accuracy counts no verdict as wrong.
    """
    rewards = rollouts.rewards[rollouts.graded]
    flat = zero_variance_groups(rollouts.rewards, rollouts.graded, rollouts.group_index, rollouts.totals.groups)
    return {
        "rollout/reward_mean": rewards.mean().item(),
        # Not std(), which warns where no completion is graded: NaN says it.
        "rollout/reward_std": (rewards - rewards.mean()).square().mean().sqrt().item(),
        "rollout/accuracy": sum(sample.correct is True for sample in samples) / len(samples),
        "rollout/zero_variance_groups": flat.float().mean().item(),
        "rollout/identical_groups": identical_groups(samples, rollouts.group_index),
        "rollout/ungraded": 1 - rollouts.graded.float().mean().item(),
        "rollout/completion_length": rollouts.sequences.lengths.float().mean().item(),
        "rollout/tokens_per_second": rollouts.totals.tokens / seconds,
    }


def identical_groups(samples: list[Sample], group_index: Tensor) -> float:
    """Share of the groups whose completions are all the same text."""
    texts: dict[int, set[str]] = {}
    for sample, group in zip(samples, group_index.tolist()):
        texts.setdefault(group, set()).add(sample.completion)
    return sum(len(group) == 1 for group in texts.values()) / len(texts)


def _first_reason(samples: list[Sample]) -> str:
    return next(sample.reason for sample in samples if sample.reward is None or sample.reward != sample.reward)
