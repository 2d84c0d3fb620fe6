"""The upper-bound surrogate of a completion's log-likelihood."""

import math
from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["length_normalized", "sum"]


def eubo(
    token_log_probs: Tensor, scored: Tensor, weight: Tensor, lengths: Tensor, *, beta: float, reduction: Reduction
) -> Tensor:
    """Evidence upper bound (SPG, arXiv 2510.09541), estimated from K draws.

        1 / beta * mean over ever-masked tokens i of log( 1/K * sum over draws j of [i masked in j] p_ij^beta / t_ij )

    with t_ij = 1 / weight_ij: the share of the scored tokens (of token i's block, where blocks are masked on their own)
    that draw j masks. At the population value, and for conditionals of a true
    joint distribution, it is at least log p; from few draws it is a surrogate for completions to be made less likely.

    Args:
        token_log_probs: (N, K, C) float32, 0 where not scored.
        scored: (N, K, C) bool.
        weight: (N, K, C) float32, positive where scored.
        lengths: (N,) int64, scored tokens L.
        beta: Exponent, at least 1.
        reduction: `length_normalized` is the mean over tokens, `sum` is L times that.

    Returns:
        (N,) float32.
    """
    ever = scored.any(dim=1)
    terms = (beta * token_log_probs + weight.log()).masked_fill(~scored, -torch.inf)
    # A token that no draw masks would be a logsumexp of -inf alone, whose gradient is NaN even where it is left out.
    terms = terms.masked_fill(~ever[:, None], 0.0)
    per_token = (terms.logsumexp(dim=1) - math.log(scored.shape[1])) / beta
    mean = per_token.masked_fill(~ever, 0.0).sum(dim=1) / ever.sum(dim=1)
    return mean * lengths if reduction == "sum" else mean
