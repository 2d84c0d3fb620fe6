"""The masking laws written out by enumeration, and rows to draw masks for."""

from collections.abc import Callable
from functools import partial
from itertools import combinations, product
from math import comb

import torch
from numpy.polynomial import Polynomial
from torch import Tensor

from stabledrl.diffusion import masking
from stabledrl.randomness import row_keys
from stabledrl.types import Corruption, Sequences

MASK, PAD = 9, 8
BLOCK = 3
Law = dict[frozenset[int], float]
"""Probability of every set of masked positions."""

Draw = Callable[[Sequences, int, int], Corruption]
BY_SHARE: dict[str, Draw] = {
    "uniform": masking.uniform,
    "stratified": masking.stratified,
    "complementary": masking.complementary,
    "block_random": partial(masking.block_random, block_size=BLOCK),
}
"""Laws whose every draw masks k >= 1 of L tokens and weighs them by L / k."""


def coupled(sequences: Sequences, draws: int, step: int) -> Corruption:
    """With as many draws in pairs as the other laws make in all."""
    return masking.coupled(sequences, draws + 1, step)


DRAWS: dict[str, Draw] = {
    **BY_SHARE,
    "antithetic": masking.antithetic,
    "quadrature": masking.quadrature,
    "coupled": coupled,
}
POINTS: dict[int, list[tuple[float, float]]] = {
    1: [(1 / 2, 1)],
    2: [((1 - 3**-0.5) / 2, 1 / 2), ((1 + 3**-0.5) / 2, 1 / 2)],
    3: [((1 - 0.6**0.5) / 2, 5 / 18), (1 / 2, 8 / 18), ((1 + 0.6**0.5) / 2, 5 / 18)],
}
"""Points and weights of Gauss-Legendre quadrature on (0, 1), from the textbook."""


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


def rate_law(length: int, rate: float) -> Law:
    """Every token on its own with probability `rate`, given that one is masked at least."""
    some = 1 - (1 - rate) ** length
    sets = [frozenset(chosen) for size in range(1, length + 1) for chosen in combinations(range(length), size)]
    return {chosen: rate ** len(chosen) * (1 - rate) ** (length - len(chosen)) / some for chosen in sets}


def coefficients_of(name: str, length: int, draws: int = 2) -> Law:
    """What an estimate's expectation multiplies the summed log-probabilities of every set of masked tokens by."""
    if name == "quadrature":
        found: Law = {}
        for rate, weight in POINTS[draws]:
            for chosen, probability in rate_law(length, rate).items():
                mass = probability * (1 - (1 - rate) ** length)
                found[chosen] = found.get(chosen, 0.0) + weight * mass / rate
        return found
    if name == "coupled":
        # The integral of t^(k - 1) (1 - t)^(L - k) over (.2, .8), once for each view of a pair.
        t, share = Polynomial([0, 1]), 1 / (draws // 2 + 1)
        pair = [(t ** (k - 1) * (1 - t) ** (length - k)).integ() for k in range(1, length + 1)]
        view = [float(part(0.8) - part(0.2)) / 0.6 for part in pair]
        sets = rate_law(length, 0.5)
        return {chosen: share * (draws // 2 * 2 * view[len(chosen) - 1] + (len(chosen) == length)) for chosen in sets}
    whole = length + (name == "antithetic")
    return {chosen: share * whole / len(chosen) for chosen, share in law_of(name, length).items() if chosen}


def law_of(name: str, length: int, block: int = BLOCK) -> Law:
    """The law of one draw (of either half of a pair) over `length` scored tokens."""
    everything = range(length)
    if name == "antithetic":
        return _of_sizes(everything, range(length + 1))
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
