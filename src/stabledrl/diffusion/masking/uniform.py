"""Laws that mask k ~ U{1..L} tokens, each with weight L / k: every draw estimates the ELBO without bias."""

from stabledrl.diffusion.masking.draws import per_draw, strata, token_ranks, weigh_by_share
from stabledrl.randomness import Purpose
from stabledrl.types import Corruption, Sequences


def uniform(sequences: Sequences, draws: int, step: int) -> Corruption:
    """Each draw on its own: k ~ U{1..L}, then k of the L tokens. A draw's weighted sum is an unbiased ELBO.

    Args:
        sequences: N rows.
        draws: K.
        step: Counter that sets apart repeated uses of the same rows.

    Returns:
        The corruption.
    """
    u = per_draw(sequences, Purpose.MASK_COUNT, draws, step, 1)[:, :, 0]
    count = 1 + (u * sequences.lengths[:, None]).long()
    return weigh_by_share(sequences, token_ranks(sequences, draws, step) < count[:, :, None])


def stratified(sequences: Sequences, draws: int, step: int) -> Corruption:
    """As `uniform`, with the K counts spread evenly over 1..L: k_j = 1 + floor(((u + j / K) mod 1) L). Unbiased too.

    Args:
        sequences: N rows.
        draws: K.
        step: Counter that sets apart repeated uses of the same rows.

    Returns:
        The corruption.
    """
    count = 1 + (strata(sequences, draws, step) * sequences.lengths[:, None]).long()
    return weigh_by_share(sequences, token_ranks(sequences, draws, step) < count[:, :, None])
