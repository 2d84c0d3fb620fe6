"""The sequence log-likelihood whose gradient an objective follows."""

import torch
from torch import Tensor

from stabledrl.types import LikelihoodEstimate


def elbo(estimate: LikelihoodEstimate) -> Tensor:
    """The lower bound for every row, (N,)."""
    return estimate.elbo


def sandwich(estimate: LikelihoodEstimate, advantages: Tensor, omega: float) -> Tensor:
    """The lower bound where a completion is to become more likely, a mixture with the upper bound where less.

    Pushing a lower bound down need not push the likelihood down; pushing an upper bound down does.
    Source: SPG, arXiv 2510.09541: ELBO where A > 0, else omega * EUBO + (1 - omega) * ELBO.

    Args:
        estimate: Holds `elbo` and `eubo`, (N,) each.
        advantages: (N,).
        omega: Share of the upper bound, in [0, 1].

    Returns:
        (N,), differentiable in both bounds.
    """
    assert estimate.eubo is not None, "checked against `needs` before training"
    return torch.where(advantages > 0, estimate.elbo, omega * estimate.eubo + (1 - omega) * estimate.elbo)
