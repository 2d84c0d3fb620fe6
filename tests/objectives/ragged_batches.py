"""Rollouts of completions of several tokens and different lengths, and estimates of their tokens, in float64."""

from dataclasses import replace

import torch
from torch import Tensor

from stabledrl.types import LikelihoodEstimate, RolloutBatch, Sequences, UpdateTotals

F64 = torch.float64


def token_estimate(token_elbo: Tensor, mask: Tensor) -> LikelihoodEstimate:
    """An estimate by one draw that scores every token of (N, C) where `mask` is True."""
    token_elbo = torch.where(mask, token_elbo, 0.0)
    return LikelihoodEstimate(
        elbo=token_elbo.sum(dim=1) / mask.sum(dim=1),
        token_elbo=token_elbo,
        token_log_probs=token_elbo.detach()[:, None],
        scored=mask[:, None],
    )


def ragged_rollouts(
    old_tokens: Tensor,
    lengths: Tensor,
    values: Tensor,
    group_index: Tensor,
    *,
    graded: Tensor | None = None,
    num_groups: int | None = None,
) -> RolloutBatch:
    """Rollouts with old shares (N, C), lengths (N,) and, as rewards and as advantages alike, values (N,)."""
    rows, width = old_tokens.shape
    mask = torch.arange(width) < lengths[:, None]
    graded = torch.ones(rows, dtype=torch.bool) if graded is None else graded
    return RolloutBatch(
        sequences=Sequences(
            token_ids=torch.zeros(rows, width + 1, dtype=torch.int64),
            attention_mask=torch.ones(rows, width + 1, dtype=torch.bool),
            completion_mask=mask,
            row_keys=torch.arange(rows),
        ),
        group_index=group_index,
        rewards=torch.where(graded, values, float("nan")),
        graded=graded,
        advantages=torch.where(graded, values, 0.0),
        old=token_estimate(old_tokens.detach(), mask),
        totals=UpdateTotals(rows=rows, groups=num_groups or int(group_index.max()) + 1, tokens=int(lengths.sum())),
    )


class TokenPolicy:
    """Smooth shares of a parameter vector: token (i, t) has -(theta . a_it)^2 / 2."""

    def __init__(self, lengths: Tensor, width: int, *, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.mask = torch.arange(width) < lengths[:, None]
        self.slopes = torch.randn(len(lengths), width, 6, generator=generator, dtype=F64)
        self.theta = torch.randn(6, generator=generator, dtype=F64).requires_grad_()

    def __call__(self, theta: Tensor | None = None) -> LikelihoodEstimate:
        theta = self.theta if theta is None else theta
        return token_estimate(-(self.slopes @ theta).square() / 2, self.mask)

    def old(self, spread: float) -> Tensor:
        """(N, C) shares of a policy whose log-ratios to this one have the given deviation."""
        noise = torch.randn(self.mask.shape, generator=torch.Generator().manual_seed(1), dtype=F64)
        return self().token_elbo.detach() - spread * noise

    def gradient(self, loss: Tensor) -> Tensor:
        """(6,) gradient of a loss."""
        return torch.autograd.grad(loss, self.theta, retain_graph=True)[0]


def without_reward(batch: RolloutBatch, row: int, share: float) -> RolloutBatch:
    """The batch with one row's reward missing and its old shares replaced."""
    graded, old = batch.graded.clone(), batch.old.token_elbo.clone()
    graded[row] = False
    old[row] = share
    return replace(
        batch,
        graded=graded,
        rewards=batch.rewards.masked_fill(~graded, float("nan")),
        advantages=batch.advantages.masked_fill(~graded, 0.0),
        old=replace(batch.old, token_elbo=old),
    )
