"""Estimates of the divergence from the reference, from log-likelihoods of the policy's own samples.

With x = log pi - log ref of a sample drawn from pi (here: the difference of two ELBOs, so all is approximate):

- k1 = x. Its mean is KL(pi || ref), unbiased, but its gradient's mean is 0: something to plot, nothing to minimise.
- k2 = x^2 / 2. Its gradient's mean is the gradient of KL(pi || ref), exactly; its value is biased.
- k3 = exp(-x) - 1 + x. Its mean is KL(pi || ref), unbiased, and no sample is negative, but its gradient's mean is that
  of the other direction, KL(ref || pi). Close to the reference the two agree.

So k2 is the penalty towards the reference that is usually meant. k3, GRPO's, grows exponentially with samples that the
policy has made unlikely. When a rollout serves several updates, its samples are the old policy's and these means drift.

Sources: J. Schulman, "Approximating KL divergence" (2020), for the values; arXiv 2402.03300 equation 4 for k3;
arXiv 2512.03759 for k2 on ELBOs. The gradients follow from E_pi[f(x) grad log pi] with f = 1, x and 1 - exp(-x).
"""

from typing import Literal, assert_never

import torch
from torch import Tensor

from stabledrl.objectives.importance import clamp_log_ratio
from stabledrl.types import LikelihoodEstimate, RolloutBatch

KLEstimator = Literal["k1", "k2", "k3"]
"""See the table of this module."""

KLLevel = Literal["sequence", "token", "sequence_per_token"]
"""What x is the difference of, see `kl_shares`."""


def kl_shares(current: LikelihoodEstimate, rollouts: RolloutBatch, estimator: KLEstimator, level: KLLevel) -> Tensor:
    """Each completion's share of the update's penalty: all shares add up to a mean.

    - `sequence`: the mean over completions, x being the difference of the estimates as they are;
    - `token`: the mean over all tokens of the update, x being the difference of a token's shares of the bound: as
      methods have it whose ratios are per token. It needs masks shared by policy and reference;
    - `sequence_per_token`: the mean over completions of the divergence of the whole bound (the sum over tokens)
      divided by the completion's length: ESPO (arXiv 2512.03759).

    Args:
        current: N rows under the policy.
        rollouts: The same rows, with their estimate under the reference.
        estimator: See this module's table.
        level: One of the three above.

    Returns:
        (N,), differentiable in `current`.
    """
    reference, totals = rollouts.reference, rollouts.totals
    assert reference is not None
    if level == "sequence":
        return kl_penalty(current.elbo, reference.elbo, estimator) / totals.rows
    if level == "token":
        # A token that no draw scores has shares of 0, so a difference of 0 and no divergence.
        return kl_penalty(current.token_elbo, reference.token_elbo, estimator).sum(dim=1) / totals.tokens
    if level == "sequence_per_token":
        whole = kl_penalty(current.token_elbo.sum(dim=1), reference.token_elbo.sum(dim=1), estimator)
        return whole / rollouts.sequences.lengths / totals.rows
    assert_never(level)


def kl_penalty(current_elbo: Tensor, reference_elbo: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimates the divergence per row.

    Args:
        current_elbo: (N,) log-likelihoods under the policy, in nats (per token, if length-normalised).
        reference_elbo: (N,) under the reference; no gradient goes into them.
        estimator: k1, k2 or k3, see this module's table.

    Returns:
        (N,) in the unit of the log-likelihoods. k3 limits x to +-80 and has gradient 0 beyond.
    """
    x = current_elbo - reference_elbo.detach()
    if estimator == "k1":
        return x
    if estimator == "k2":
        return x.square() / 2
    if estimator == "k3":
        # The whole x is limited, not just the exponent: a lone "+ x" would push an unlikely sample further down.
        x = clamp_log_ratio(x)
        return torch.expm1(-x) + x
    assert_never(estimator)
