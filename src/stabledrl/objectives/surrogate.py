"""The log-likelihood whose gradient an update follows."""

from typing import Literal

import torch
from torch import Tensor

from stabledrl.protocols import Need
from stabledrl.types import LikelihoodEstimate

Surrogate = Literal["sandwich", "elbo"]


def sandwich(estimate: LikelihoodEstimate, advantages: Tensor, omega: float) -> Tensor:
    """The SPG sandwich (arXiv 2510.09541): raise a lower bound of good completions, press an upper bound of bad ones.

    Args:
        estimate: Estimate of N completions, with an upper bound.
        advantages: (N,).
        omega: Share of the upper bound where the advantage is not positive.

    Returns:
        (N,) ELBO where the advantage is positive, else omega * EUBO + (1 - omega) * ELBO.
    """
    assert estimate.eubo is not None
    mixed = omega * estimate.eubo + (1 - omega) * estimate.elbo
    return torch.where(advantages > 0, estimate.elbo, mixed)


def surrogate_needs(surrogate: Surrogate) -> frozenset[Need]:
    """What the estimates must hold for a surrogate."""
    return frozenset({"elbo", "eubo"}) if surrogate == "sandwich" else frozenset({"elbo"})
