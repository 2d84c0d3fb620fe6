"""Rollouts of several tokens each in float64, for tests of objectives that read tokens' shares of the bound."""

from dataclasses import replace

import torch
from torch import Tensor

from stabledrl.types import LikelihoodEstimate, RolloutBatch, Sequences, UpdateTotals

LENGTHS = (1, 2, 5, 4, 5, 3)
GROUPS = (0, 0, 0, 1, 1, 1)
WIDTH = 5


def token_estimate(shares: Tensor, scored: Tensor | None = None, reduction: str = "sum") -> LikelihoodEstimate:
    """An estimate of one draw with the given (N, C) shares, scored where a completion has a token."""
    if scored is None:
        scored = torch.arange(WIDTH) < torch.tensor(LENGTHS)[: len(shares), None]
    shares = torch.where(scored, shares, 0.0)
    total = shares.sum(dim=1)
    return LikelihoodEstimate(
        elbo=total / torch.tensor(LENGTHS)[: len(shares)] if reduction == "length_normalized" else total,
        token_elbo=shares,
        token_log_probs=shares.detach()[:, None],
        scored=scored[:, None],
    )


def token_rollouts(old: Tensor, advantages: Tensor, graded: Tensor | None = None) -> RolloutBatch:
    """Six rollouts in two groups with the given (N, C) old shares."""
    rows = len(old)
    graded = torch.ones(rows, dtype=torch.bool) if graded is None else graded
    return RolloutBatch(
        sequences=Sequences(
            token_ids=torch.zeros(rows, 1 + WIDTH, dtype=torch.int64),
            attention_mask=torch.ones(rows, 1 + WIDTH, dtype=torch.bool),
            completion_mask=torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None],
            row_keys=torch.arange(rows),
        ),
        group_index=torch.tensor(GROUPS),
        rewards=torch.where(graded, advantages, float("nan")),
        graded=graded,
        advantages=torch.where(graded, advantages, 0.0),
        old=token_estimate(old.detach()),
        totals=UpdateTotals(rows=rows, groups=2, tokens=sum(LENGTHS)),
    )


def random_batch(seed: int, spread: float = 0.5) -> tuple[Tensor, RolloutBatch]:
    """(N, C) current shares with gradient and rollouts whose shares differ from them by about `spread`."""
    generator = torch.Generator().manual_seed(seed)
    current, noise = torch.randn(2, len(LENGTHS), WIDTH, generator=generator, dtype=torch.float64)
    advantages = torch.randn(len(LENGTHS), generator=generator, dtype=torch.float64)
    return current.requires_grad_(), token_rollouts(current + spread * noise, advantages)


def ungrade(batch: RolloutBatch, row: int) -> RolloutBatch:
    """The same rollouts without the reward of a row."""
    graded = torch.arange(len(batch)) != row
    return replace(
        batch,
        graded=graded,
        rewards=torch.where(graded, batch.rewards, float("nan")),
        advantages=torch.where(graded, batch.advantages, 0.0),
    )
