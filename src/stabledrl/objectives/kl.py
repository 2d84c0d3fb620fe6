"""KL divergence from a frozen reference, estimated on the policy's own samples (Schulman, "Approximating KL", 2020)."""

from typing import Literal

from torch import Tensor

from stabledrl.objectives.importance import clamp_log_ratio

KLEstimator = Literal["k1", "k2", "k3"]


def kl_penalty(current: Tensor, reference: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimates KL(policy || reference) per completion, with x = log policy - log reference.

    - `k1`, x: unbiased in value, can be negative; as a loss its gradient is zero on average, it does not pull.
    - `k2`, x^2 / 2: biased in value; its gradient is that of the KL for fresh samples.
    - `k3`, exp(-x) - 1 + x: unbiased in value and never negative; its gradient is that of the reverse divergence.

    Args:
        current: (N,) log-likelihoods under the policy.
        reference: (N,) log-likelihoods under the reference, on the same corruptions.
        estimator: Which one.

    Returns:
        (N,) float32; x is clamped to +-80.
    """
    log_ratio = clamp_log_ratio(current - reference)
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio.square() / 2
    return (-log_ratio).exp() - 1 + log_ratio
