"""Rollouts and estimates from plain tensors, for tests of objectives: only what a loss reads is given."""

import torch
from torch import Tensor

from stabledrl.types import LikelihoodEstimate, RolloutBatch, Sequences, UpdateTotals


def estimate(elbo: Tensor, eubo: Tensor | None = None) -> LikelihoodEstimate:
    """An estimate of (N,) log-likelihoods with one draw of one token."""
    return LikelihoodEstimate(
        elbo=elbo,
        eubo=eubo,
        token_elbo=elbo[:, None],
        token_log_probs=elbo.detach()[:, None, None],
        scored=torch.ones(len(elbo), 1, 1, dtype=torch.bool),
    )


def rollouts(
    old_elbo: Tensor,
    advantages: Tensor,
    group_index: Tensor,
    *,
    graded: Tensor | None = None,
    num_groups: int | None = None,
) -> RolloutBatch:
    """Rollouts with the given (N,) tensors; completions of one token. Advantages are taken as they are."""
    rows = len(old_elbo)
    graded = torch.ones(rows, dtype=torch.bool) if graded is None else graded
    return RolloutBatch(
        sequences=Sequences(
            token_ids=torch.zeros(rows, 2, dtype=torch.int64),
            attention_mask=torch.ones(rows, 2, dtype=torch.bool),
            completion_mask=torch.ones(rows, 1, dtype=torch.bool),
            row_keys=torch.arange(rows),
        ),
        group_index=group_index,
        rewards=torch.where(graded, advantages, float("nan")),
        graded=graded,
        advantages=advantages,
        old=estimate(old_elbo.detach()),
        totals=UpdateTotals(rows=rows, groups=num_groups or int(group_index.max()) + 1, tokens=rows),
    )


class ToyPolicy:
    """Smooth per-row bounds of a parameter vector, float64: ELBO_i = -|theta - a_i|^2 / 2 and a larger EUBO_i."""

    def __init__(self, rows: int, *, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.centers, self.slopes = torch.randn(2, rows, rows + 2, generator=generator, dtype=torch.float64)
        self.theta = torch.randn(rows + 2, generator=generator, dtype=torch.float64).requires_grad_()

    def __call__(self, theta: Tensor | None = None) -> LikelihoodEstimate:
        theta = self.theta if theta is None else theta
        elbo = -(theta - self.centers).square().sum(dim=1) / 2
        return estimate(elbo, elbo + 1 + torch.sigmoid(self.slopes @ theta))

    def gradients(self, values: Tensor) -> Tensor:
        """(N, D) gradient of every entry of `values` with respect to theta."""
        return torch.stack([torch.autograd.grad(value, self.theta, retain_graph=True)[0] for value in values])

    def gradient(self, loss: Tensor) -> Tensor:
        """(D,) gradient of a loss."""
        return torch.autograd.grad(loss, self.theta, retain_graph=True)[0]
