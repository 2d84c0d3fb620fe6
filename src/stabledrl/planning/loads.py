"""What a sampler and an estimator ask of the policy: they run for one completion on a policy that only takes notes.

So a sampler or an estimator of the user's own is planned for as well, and what is planned is what runs.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from stabledrl.protocols import LikelihoodEstimator, Sampler
from stabledrl.randomness import row_keys
from stabledrl.types import Completions, Sequences, Vocabulary

_ANSWER = 2
_VOCABULARY = Vocabulary(mask_token_id=0, pad_token_id=1, end_token_ids=(1,), num_candidates=4)
_TRIALS = 16
"""Micro-batches whose masks are drawn; the largest number of scored tokens counts."""


@dataclass(frozen=True, kw_only=True)
class RowPass:
    """The largest forward pass for one completion.

    Attributes:
        tokens: Positions that are computed, those of several corruptions together.
        logits: Positions whose logits over the vocabulary exist at once.
        targets: Positions of which only a target's log-probability is computed, part of the vocabulary by part.
        cached: Positions whose keys and values are in the cache once it has been made.
        mask: Entries of a written-out attention mask.
    """

    tokens: int = 0
    logits: int = 0
    targets: int = 0
    cached: int = 0
    mask: int = 0


@dataclass(frozen=True, kw_only=True)
class Load:
    """Forward passes on one process, of completions and prompts as long as they get.

    Attributes:
        sampling: Pass of a denoising step or of reading a prompt, whichever is larger.
        sampling_rows: Completions per such pass.
        scoring: Pass of an estimate without gradient, and of an update.
        scoring_rows: Completions per estimate without gradient.
        update_rows: Completions per micro-batch.
        scored: Most tokens of a micro-batch that a draw masks and an update scores.
    """

    sampling: RowPass
    sampling_rows: int
    scoring: RowPass
    scoring_rows: int
    update_rows: int
    scored: int


class _Notes:
    """A policy without weights: answers every position with the same token, and notes how much was asked of it."""

    def __init__(self) -> None:
        self.largest = RowPass()

    def new_cache(self) -> "_CacheLength":
        return _CacheLength()

    def __call__(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        keep: Tensor | None = None,
        targets: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: "_CacheLength | None" = None,
    ) -> Tensor:
        rows, columns = token_ids.shape
        shape = (rows, columns) if keep is None else (int(keep.sum()),) if keep.dtype == torch.bool else keep.shape
        asked = 1
        for size in shape:
            asked *= int(size)
        if cache is not None:
            cache.length += columns
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
            mask = attention_mask.numel()
        else:
            # Made from the rows' padding by block-causal policies, where it has an entry per pair.
            mask = rows * columns * columns
        self._note(
            tokens=token_ids.numel(),
            logits=asked if targets is None else 0,
            targets=0 if targets is None else asked,
            cached=0 if cache is None else cache.length,
            mask=mask,
        )
        if targets is not None:
            return torch.zeros(len(targets))
        logits = torch.zeros(*shape, _VOCABULARY.num_candidates)
        logits[..., _ANSWER] = 1
        return logits

    def _note(self, **sizes: int) -> None:
        own = {field.name: max(getattr(self.largest, field.name), sizes[field.name]) for field in fields(RowPass)}
        self.largest = RowPass(**own)


class _CacheLength:
    """A cache of keys and values of which only the length is kept."""

    def __init__(self) -> None:
        self.length = 0

    def crop(self, tokens: int) -> None:
        self.length += tokens

    def batch_select_indices(self, rows: Tensor) -> None:
        """Rows do not matter: the length is that of each."""


@torch.no_grad()
def measure_load(
    sampler: Sampler,
    likelihood: LikelihoodEstimator,
    *,
    prompt_length: int,
    rollout_rows: int,
    micro_batches: int,
    rows_per_forward: int | None,
    evaluation_rows: int = 0,
) -> Load:
    """Runs sampler and estimator on a policy without weights.

    Args:
        sampler: The sampler.
        likelihood: The estimator.
        prompt_length: Tokens of the longest prompt.
        rollout_rows: Completions per rollout and process.
        micro_batches: Parts in which a process's share of a rollout is updated on.
        rows_per_forward: Completions per forward pass while sampling and scoring; None takes all at once.
        evaluation_rows: Completions that an evaluation samples together.

    Returns:
        What a process has to hold at most.
    """
    completions, sampling = _sample(sampler, prompt_length)
    rows, update_rows = rows_per_forward or rollout_rows, rollout_rows // micro_batches
    notes = _Notes()
    one = _sequences(completions, prompt_length, 1, 0)
    likelihood(notes, one, likelihood.corrupt(one, update=None), vocabulary=_VOCABULARY)
    scored = [_scored(likelihood, _sequences(completions, prompt_length, update_rows, n)) for n in range(_TRIALS)]
    return Load(
        sampling=sampling,
        sampling_rows=max(min(rows, rollout_rows), evaluation_rows),
        scoring=notes.largest,
        scoring_rows=min(rows, rollout_rows),
        update_rows=update_rows,
        scored=max(scored),
    )


def _sample(sampler: Sampler, prompt_length: int) -> tuple[Completions, RowPass]:
    notes = _Notes()
    prompt = torch.full((1, prompt_length), _ANSWER)
    completions = sampler(
        notes,
        prompt,
        torch.ones_like(prompt, dtype=torch.bool),
        vocabulary=_VOCABULARY,
        row_keys=_keys(1, 0),
        temperature=0.0,
    )
    return completions, notes.largest


def _keys(rows: int, number: int) -> Tensor:
    index = torch.arange(rows)
    return row_keys(0, number, torch.zeros_like(index), index)


def _sequences(completions: Completions, prompt_length: int, rows: int, number: int) -> Sequences:
    """Equal rows of full length, with keys of their own."""
    prompt = torch.full((rows, prompt_length), _ANSWER)
    repeated: dict[str, Any] = {
        field.name: getattr(completions, field.name).repeat_interleave(rows, dim=0) for field in fields(completions)
    }
    mask = torch.ones_like(prompt, dtype=torch.bool)
    return Sequences.join(prompt, mask, Completions(**repeated), _keys(rows, number))


def _scored(likelihood: LikelihoodEstimator, sequences: Sequences) -> int:
    return int(likelihood.corrupt(sequences, update=0).scored(sequences).sum())
