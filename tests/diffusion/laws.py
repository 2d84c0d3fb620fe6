"""The masking laws written out by enumeration, and rows to draw masks for."""

from collections.abc import Callable
from functools import partial
from itertools import combinations, product
from math import comb

import torch
from torch import Tensor

from stabledrl.diffusion import masking
from stabledrl.randomness import row_keys
from stabledrl.types import Corruption, Sequences

MASK, PAD = 9, 8
BLOCK = 3
Law = dict[frozenset[int], float]
"""Probability of every set of masked positions."""

Draw = Callable[[Sequences, int, int], Corruption]
DRAWS: dict[str, Draw] = {
    "uniform": masking.uniform,
    "stratified": masking.stratified,
    "complementary": masking.complementary,
    "block_random": partial(masking.block_random, block_size=BLOCK),
}


def make_rows(
    lengths: Tensor, width: int, *, prompt: int = 4, padding: int = 0, first_id: int = 0, ids: Tensor | None = None
) -> Sequences:
    """Rows with the given completion lengths; `padding` columns come on top of the prompt's own."""
    rows = len(lengths)
    scored = torch.arange(width) < lengths[:, None]
    if ids is None:
        ids = torch.randint(0, PAD, (rows, width), generator=torch.Generator().manual_seed(0))
    prompts = torch.full((rows, padding + prompt), 5)
    prompts[:, :padding] = PAD
    return Sequences(
        token_ids=torch.cat([prompts, torch.where(scored, ids, MASK)], dim=1),
        attention_mask=torch.cat([prompts != PAD, torch.ones_like(scored)], dim=1),
        completion_mask=scored,
        row_keys=row_keys(0, 0, torch.arange(first_id, first_id + rows), torch.zeros(rows, dtype=torch.int64)),
    )


def _of_sizes(places: range, sizes: range) -> Law:
    """A size drawn uniformly, then a set of that size drawn uniformly."""
    return {
        frozenset(chosen): 1 / len(sizes) / comb(len(places), size)
        for size in sizes
        for chosen in combinations(places, size)
    }


def _block_random_law(length: int, block: int, rate: float) -> Law:
    law: Law = {}
    starts = range(0, length, block)
    for start in starts:
        end = min(start + block, length)
        inside = _of_sizes(range(start, end), range(1, end - start + 1))
        for context in product([False, True], repeat=start):
            chance = 1.0
            for hit in context:
                chance *= rate if hit else 1 - rate
            earlier = {place for place, hit in enumerate(context) if hit}
            for chosen, probability in inside.items():
                masked = chosen | earlier | set(range(end, length))
                law[masked] = law.get(masked, 0.0) + probability * chance / len(starts)
    return law


def law_of(name: str, length: int, block: int = BLOCK) -> Law:
    """The law of one draw (of either half of a complementary pair) over `length` scored tokens."""
    everything = range(length)
    if name in ("uniform", "stratified"):
        return _of_sizes(everything, range(1, length + 1))
    if name == "complementary":
        return _of_sizes(everything, range(1, length)) if length > 1 else {frozenset([0]): 1.0}
    return _block_random_law(length, block, 0.15)


def deviation(counts: Tensor, expected: Tensor) -> float:
    """Chi-square statistic of counts, in standard deviations from its mean; cells of probability 0 must be empty."""
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    freedom = int(possible.sum()) - 1
    return float((statistic - freedom) / (2 * max(freedom, 1)) ** 0.5)


def set_codes(masked: Tensor) -> Tensor:
    """(..., L) bool to the number whose bits are the masked positions."""
    return (masked.long() * 2 ** torch.arange(masked.shape[-1])).sum(dim=-1)
