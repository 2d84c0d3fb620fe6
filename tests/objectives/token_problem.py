"""A policy and its rollouts, eight completions of one to four tokens in three groups, for objectives over tokens."""

from dataclasses import replace

import torch
from tests.objectives.ragged_batches import TokenPolicy, ragged_rollouts
from torch import Tensor

from stabledrl.types import LikelihoodEstimate, RolloutBatch

LENGTHS = torch.tensor([4, 1, 3, 2, 4, 2, 3, 1])
INDEX = torch.tensor([2, 0, 1, 0, 2, 2, 0, 2])  # groups of 3, 1 and 4, rows mixed
GRADED = torch.tensor([True, True, True, True, False, True, True, True])


def token_problem(*, spread: float = 1.0, graded: Tensor = GRADED) -> tuple[TokenPolicy, RolloutBatch]:
    """Log-ratios per token are spread over +-`spread`; by default one row has no reward."""
    policy = TokenPolicy(LENGTHS, 4)
    advantages = torch.randn(len(LENGTHS), dtype=torch.float64)
    return policy, ragged_rollouts(policy.old(spread), LENGTHS, advantages, INDEX, graded=graded)


def with_upper_bound(estimate: LikelihoodEstimate) -> LikelihoodEstimate:
    """The estimate with some smooth EUBO, whose gradient has another direction than the ELBO's."""
    return replace(estimate, eubo=0.5 * estimate.elbo + 1 / (1 + estimate.token_elbo.square().sum(dim=1)))
