"""The records that flow from prompt to update. Frozen; tensors only, so that they can be sliced, moved and saved.

Shape legend: N rows (prompts x group size), G groups, P prompt length, C completion length, T = P + C, K Monte-Carlo
draws, V vocabulary size, M scored positions of a batch in row-major order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from stabledrl.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The token ids that masked diffusion has to know about.

    Attributes:
        mask_token_id: The token that stands for "not yet decoded".
        pad_token_id: Fills prompts on the left; never attended.
        end_token_ids: Any of these ends a completion (end of text, end of turn).
        num_candidates: Ids at or beyond this are unused embedding rows and are never sampled.
    """

    mask_token_id: int
    pad_token_id: int
    end_token_ids: tuple[int, ...]
    num_candidates: int


@dataclass(frozen=True, kw_only=True)
class Sequences(Rows):
    """Prompts with their completions, ready to be scored.

    Attributes:
        token_ids: (N, T) int64. Prompts are padded on the left; positions after a completion's end hold the mask token.
        attention_mask: (N, T) bool, False on the prompt's padding only: positions after the end are attended.
        completion_mask: (N, C) bool, True up to and including the first end token. C is its width.
        row_keys: (N,) int64 keys of `stabledrl.randomness`.
        step_map: (N, C) int64, the denoising step that decided each token, see `Completions`; None where the sequences
            were not sampled.
    """

    token_ids: Tensor
    attention_mask: Tensor
    completion_mask: Tensor
    row_keys: Tensor
    step_map: Tensor | None = None

    @property
    def prompt_length(self) -> int:
        """P, the padded length of the prompts."""
        return self.token_ids.shape[1] - self.completion_mask.shape[1]

    @property
    def completion_ids(self) -> Tensor:
        """(N, C) int64."""
        return self.token_ids[:, self.prompt_length :]

    @property
    def lengths(self) -> Tensor:
        """(N,) int64, the number of scored tokens L of each completion (at least 1 for a sampled one)."""
        return self.completion_mask.sum(dim=1)

    @classmethod
    def join(cls, prompt_ids: Tensor, prompt_mask: Tensor, completions: "Completions", row_keys: Tensor) -> Self:
        """Puts N prompts, (N, P) with their mask, and N completions together."""
        return cls(
            token_ids=torch.cat([prompt_ids, completions.token_ids], dim=1),
            attention_mask=torch.cat([prompt_mask, torch.ones_like(completions.completion_mask)], dim=1),
            completion_mask=completions.completion_mask,
            row_keys=row_keys,
            step_map=completions.step_map,
        )


@dataclass(frozen=True, kw_only=True)
class Completions(Rows):
    """What a sampler returns.

    Attributes:
        token_ids: (N, C) int64; positions after the end token hold the mask token.
        completion_mask: (N, C) bool, True up to and including the first end token.
        step_map: (N, C) int64, the denoising step (from 0, over the whole completion) that decided each token; -1 where
            none did.
    """

    token_ids: Tensor
    completion_mask: Tensor
    step_map: Tensor


@dataclass(frozen=True, kw_only=True)
class Corruption(Rows):
    """K partly masked views of each sequence.

    Attributes:
        masked: (N, K, T) bool, True where the model is shown the mask token. May cover prompt tokens, which are never
            scored.
        weight: (N, K, C) float32, the factor of each scored token's log-probability, 0 elsewhere, so that the mean over
            draws of the weighted sums estimates the whole completion's (L / k for k masked of L tokens, or a block's
            own share turned over). A masked token may be left unscored.
    """

    masked: Tensor
    weight: Tensor

    def scored(self, sequences: Sequences) -> Tensor:
        """(N, K, C) bool, the masked tokens of each completion that have a weight."""
        return (self.weight > 0) & self.masked[:, :, sequences.prompt_length :] & sequences.completion_mask[:, None]


@dataclass(frozen=True, kw_only=True)
class LikelihoodEstimate(Rows):
    """Log-likelihoods of N completions under one model, float32.

    Attributes:
        elbo: (N,) the estimate that enters importance ratios: a lower bound, or a proxy for one (see the estimator).
        token_elbo: (N, C) each token's share of it, the mean over draws of weight * log p: 0 where no draw scored the
            token. Sums to `elbo`, or to L times that where the estimate is length-normalised.
        eubo: (N,) the upper-bound surrogate, where the estimator provides one.
        token_log_probs: (N, K, C) log p(token | corrupted view); 0 where `scored` is False.
        scored: (N, K, C) bool, True where a token was masked and counts.
        logits: (M, V) at the scored positions in row-major order, where the estimator was asked to keep them.
    """

    elbo: Tensor
    token_elbo: Tensor
    token_log_probs: Tensor
    scored: Tensor
    eubo: Tensor | None = None
    logits: Tensor | None = None

    @override
    def select(self, rows: Tensor | slice) -> Self:
        """Keeps the given rows, in the given order (not once logits are kept: their rows are not the batch's)."""
        if self.logits is not None:
            raise NotImplementedError("an estimate that keeps logits cannot be sliced by rows")
        return super().select(rows)


@dataclass(frozen=True, kw_only=True)
class UpdateTotals:
    """The size of the whole update, of which a batch may be a part: what a mean is taken over.

    Attributes:
        rows: Completions.
        groups: Prompts.
        tokens: Scored completion tokens.
    """

    rows: int
    groups: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class RolloutBatch(Rows):
    """Graded completions and all that an update needs to know about them.

    Attributes:
        sequences: The N completions with their prompts.
        group_index: (N,) int64 in [0, totals.groups), the prompt each row belongs to.
        rewards: (N,) float32; NaN where no reward could be given.
        graded: (N,) bool, False where the reward is missing or not finite: such rows are out of baseline and weights.
        advantages: (N,) float32, 0 where not graded.
        old: Estimate under the policy that sampled, detached.
        reference: Estimate under the frozen reference, detached; None where nothing uses it.
        totals: The size of the whole update. `select` keeps it: a loss divided by totals adds up over micro-batches.
    """

    sequences: Sequences
    group_index: Tensor
    rewards: Tensor
    graded: Tensor
    advantages: Tensor
    old: LikelihoodEstimate
    totals: UpdateTotals
    reference: LikelihoodEstimate | None = None

    def __len__(self) -> int:
        return len(self.group_index)


@dataclass(frozen=True, kw_only=True)
class ObjectiveOutput:
    """A loss and what to plot beside it.

    Attributes:
        loss: Scalar, the batch's share of the update's loss: shares of micro-batches add up to the whole.
        metrics: Detached scalars by name without prefix. Micro-batches are combined by the mean, names ending in
            `_max` by the maximum.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]


def combine_metrics(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Combines the metrics of an update's micro-batches, by the rule of `ObjectiveOutput.metrics`.

    Args:
        parts: At least one micro-batch's metrics; all have the same names.

    Returns:
        One value per name.
    """
    assert all(part.keys() == parts[0].keys() for part in parts), "micro-batches have different metrics"
    return {
        name: torch.stack([part[name] for part in parts]).amax(0)
        if name.endswith("_max")
        else torch.stack([part[name] for part in parts]).mean(0)
        for name in parts[0]
    }


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One completion as a person reads it.

    Attributes:
        task: Name of its task.
        prompt_id: Identity of the prompt in its data set.
        sample_index: Number within its group.
        prompt: The prompt as text.
        completion: The completion as text, special tokens dropped.
        reward: Weighted sum of the rewards; None where none could be given.
        correct: The grader's verdict; None where it has none.
        answer: The parsed answer.
        reason: The grader's reason.
        length: Tokens up to and including the end token.
        advantage: Group-relative advantage; None outside training.
    """

    task: str
    prompt_id: int
    sample_index: int
    prompt: str
    completion: str
    reward: float | None
    correct: bool | None
    answer: str | None
    reason: str
    length: int
    advantage: float | None = None
