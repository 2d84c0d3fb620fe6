"""Laws over pairs of a set of tokens and its complement, so that a pair scores every token once."""

import torch
from torch import Tensor

from stabledrl.diffusion.masking.draws import per_draw, strata, token_ranks, weigh, weigh_by_share
from stabledrl.randomness import Purpose
from stabledrl.types import Corruption, Sequences

COUPLED_RATES = (0.2, 0.8)
"""Between which `coupled` draws the share of masked tokens (release of arXiv 2506.20639)."""


def complementary(sequences: Sequences, draws: int, step: int) -> Corruption:
    """Sets of k ~ U{1..L-1} tokens with weight L / k, and their complements with L / (L - k).

    A proxy for the ELBO, not an unbiased one: no draw masks everything. A row of one token has it masked in both draws.

    Args:
        sequences: N rows.
        draws: K, even.
        step: Counter that sets apart repeated uses of the same rows.

    Returns:
        The corruption.
    """
    assert draws % 2 == 0
    lengths = sequences.lengths[:, None]
    u = per_draw(sequences, Purpose.MASK_COUNT, draws // 2, step, 1)[:, :, 0]
    count = 1 + (u * (lengths - 1)).long()
    first = token_ranks(sequences, draws // 2, step) < count[:, :, None]
    second = (~first | (lengths == 1)[:, :, None]) & sequences.completion_mask[:, None]
    return weigh_by_share(sequences, _interleave(first, second))


def antithetic(sequences: Sequences, draws: int, step: int) -> Corruption:
    """Sets of k ~ U{0..L} tokens with weight (L + 1) / k, and their complements with (L + 1) / (L - k). Unbiased.

    A set without a token contributes 0, and its complement is the whole completion: so each of a pair's two draws is
    an unbiased ELBO. Counts of n = K / 2 pairs are spread over 0..L: k_j = floor(((u + j / n) mod 1) (L + 1)).

    Source: ESPO, arXiv 2512.03759, which spreads the counts over the batch; here over a row's own pairs, because a
    row's draws do not depend on other rows.

    Args:
        sequences: N rows.
        draws: K, even.
        step: Counter that sets apart repeated uses of the same rows.

    Returns:
        The corruption. One draw of a pair may mask nothing.
    """
    assert draws % 2 == 0
    lengths = sequences.lengths[:, None]
    count = (strata(sequences, draws // 2, step) * (lengths + 1)).long()
    first = token_ranks(sequences, draws // 2, step) < count[:, :, None]
    masked = _interleave(first, ~first & sequences.completion_mask[:, None])
    # Where nothing is masked no weight is used.
    return weigh(sequences, masked, (lengths + 1).float() / masked.sum(dim=2).clamp_min(1).float())


def coupled(sequences: Sequences, draws: int, step: int) -> Corruption:
    """Everything masked, then pairs: each token masked with probability t ~ U(.2, .8), else in the complement.

    With n = (K - 1) / 2 pairs a token's share of the estimate is, each log-probability from the view that masks it,

        1 / (n + 1) * (log p given nothing + sum over pairs of log p / t, or log p / (1 - t) if in the complement)

    A proxy for tokens' log-probabilities, not an unbiased ELBO: t does not reach 0 and 1, and a pair's expectation
    counts every token twice, so that with n = 1 the estimate is on the scale of 1.5 times a log-likelihood.

    Source: coupled-GRPO, arXiv 2506.20639, and its release, which has n = 1 and one t for the whole batch; here every
    row has its own.

    Args:
        sequences: N rows.
        draws: K, odd and at least 3.
        step: Counter that sets apart repeated uses of the same rows.

    Returns:
        The corruption. One draw of a pair may mask nothing.
    """
    assert draws % 2 == 1
    assert draws >= 3
    pairs, width = draws // 2, sequences.completion_mask.shape[1]
    scored = sequences.completion_mask[:, None]
    low, high = COUPLED_RATES
    rate = low + (high - low) * per_draw(sequences, Purpose.MASK_COUNT, pairs, step, 1)
    inside = per_draw(sequences, Purpose.MASK_RANK, pairs, step, width) < rate
    masked = torch.cat([scored, _interleave(inside & scored, ~inside & scored)], dim=1)
    shares = torch.cat([torch.ones_like(rate[:, :1]), _interleave(rate, 1 - rate)], dim=1)[:, :, 0]
    # The estimate is a mean over the K draws.
    return weigh(sequences, masked, draws / (pairs + 1) / shares)


def _interleave(first: Tensor, second: Tensor) -> Tensor:
    """Puts (N, n, ...) and (N, n, ...) together as (N, 2n, ...), pair by pair."""
    return torch.stack([first, second], dim=2).flatten(1, 2)
