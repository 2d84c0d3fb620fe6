"""From a batch of prompts to a `RolloutBatch`: sample groups, grade, compare within the group, score."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stabledrl.advantages import Baseline, group_advantages
from stabledrl.errors import UserInputError
from stabledrl.flat_groups import drop_flat_groups
from stabledrl.generation import Prompts
from stabledrl.group_sampling import GroupSampler, rollout_subject
from stabledrl.processes import Processes
from stabledrl.protocols import Denoiser, LikelihoodEstimator
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
class ExperienceCollector:
    """Collects graded groups of completions.

    Attributes:
        groups: Samples and grades them.
        likelihood: Estimates their log-likelihood.
        baseline: What a reward is compared with, see `stabledrl.advantages`.
        max_ungraded_share: A larger share of completions without a finite reward ends the run.
    """

    groups: GroupSampler
    likelihood: LikelihoodEstimator
    baseline: Baseline
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
        prompts, index = Prompts.from_batch(batch, self.groups.group_size), int(batch["rollout_index"])
        rows = processes.share(len(prompts.prompt_id))
        subject = rollout_subject(index, prompts.select(rows))

        def estimates(model: Denoiser, sequences: Sequences) -> LikelihoodEstimate:
            own = sequences.select(rows).to(prompts.ids.device)
            return LikelihoodEstimate.cat(processes.together(lambda: self._score(model, own), subject))

        with gathered(forward) as policy:
            sampled = self.groups(
                policy, prompts, rollout_index=index, rollback_count=rollback_count, processes=processes
            )
            rewards = self._checked(sampled.rewards, sampled.samples)
            old, before = estimates(policy, sampled.sequences), None
        if reference is not None:
            with gathered(reference) as frozen:
                before = estimates(frozen, sampled.sequences)
        rollouts = self._rollouts(sampled.sequences, rewards, old, before)
        samples = [
            replace(sample, advantage=advantage)
            for sample, advantage in zip(sampled.samples, rollouts.advantages.tolist())
        ]
        metrics = rollout_metrics(rollouts, samples, sampled.seconds)
        metrics["rollout/resampled_groups"] = sampled.resampled / rollouts.totals.groups
        if self.groups.flat_groups == "drop":
            rollouts = drop_flat_groups(rollouts)
        return Experience(rollouts=rollouts, samples=samples, metrics=metrics)

    def _checked(self, rewards: Tensor, samples: list[Sample]) -> Tensor:
        if (share := int((~rewards.isfinite()).sum()) / len(rewards)) > self.max_ungraded_share:
            raise UserInputError(
                f"{share:.0%} of this rollout's completions have no finite reward, more than max_ungraded_share "
                f"{self.max_ungraded_share:.0%}; first reason: {_first_reason(samples)}"
            )
        return rewards

    def _rollouts(
        self, sequences: Sequences, rewards: Tensor, old: LikelihoodEstimate, reference: LikelihoodEstimate | None
    ) -> RolloutBatch:
        groups = len(rewards) // self.groups.group_size
        group_index = torch.arange(groups).repeat_interleave(self.groups.group_size)
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

    def _score(self, forward: Denoiser, sequences: Sequences) -> LikelihoodEstimate:
        return score(
            self.likelihood,
            forward,
            sequences,
            self.likelihood.corrupt(sequences, update=None),
            vocabulary=self.groups.vocabulary,
            rows_per_forward=self.groups.rows_per_forward,
        ).to("cpu")


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


def _first_reason(samples: list[Sample]) -> str:
    return next(sample.reason for sample in samples if sample.reward is None or sample.reward != sample.reward)
