"""Denoisers small enough to enumerate: a table of logits for every partly masked completion."""

from itertools import permutations, product
from math import exp, lcm, log
from typing import Any

import torch
from tests.diffusion.laws import BLOCK, BY_SHARE, DRAWS, MASK, Law, law_of, make_rows
from torch import Tensor

from stabledrl.chunked_cross_entropy import chosen_log_probs
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.types import Corruption, LikelihoodEstimate, Sequences, Vocabulary

TOKENS = 3
LAWS = sorted(DRAWS)
LAWS_BY_SHARE = sorted(BY_SHARE)
COMPLETIONS = [[2, 0, 1], [0, 0, 2], [1, 0, 2, 2, 1, 0], [2, 2, 1, 0, 0, 1]]
"""Of lengths 3 and 6: two-point quadrature, for one, would be exact up to length 4."""
VOCABULARY = Vocabulary(mask_token_id=MASK, pad_token_id=8, end_token_ids=(2,), num_candidates=TOKENS)


def _codes(completions: Tensor) -> Tensor:
    """(..., C) ids to the row of the table: digits in base TOKENS + 1, the mask token being the last digit."""
    digits = completions.clamp_max(TOKENS)
    return (digits * (TOKENS + 1) ** torch.arange(completions.shape[-1])).sum(dim=-1)


class TableDenoiser:
    """Looks logits up by the visible completion; remembers what it was asked for."""

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self.calls: list[tuple[Tensor, Tensor | None, Tensor | None]] = []

    def __call__(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        keep: Tensor | None = None,
        targets: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        assert position_ids is None
        assert cache is None
        self.calls.append((token_ids, attention_mask, keep))
        logits = self.table[_codes(token_ids[:, -self.table.shape[1] :])]
        if keep is None:
            return logits
        kept = logits[keep[:, -self.table.shape[1] :]]
        return kept if targets is None else chosen_log_probs(kept, targets)

    def log_prob(self, visible: list[int], position: int, token: int) -> float:
        code = int(_codes(torch.tensor(visible)))
        return float(self.table[code, position].detach().double().log_softmax(dim=-1)[token])


def random_joint(length: int, seed: int = 0) -> Tensor:
    """Probabilities of all TOKENS^length completions, with strong dependence between positions."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn([TOKENS] * length, generator=generator, dtype=torch.float64)
    return logits.flatten().softmax(dim=0).reshape(logits.shape)


def exact_denoiser(joint: Tensor) -> TableDenoiser:
    """The joint's conditionals given the visible tokens, at masked positions (elsewhere the logits are NaN)."""
    length = joint.dim()
    table = torch.full(((TOKENS + 1) ** length, length, TOKENS), torch.nan, dtype=torch.float64)
    for visible in product(range(TOKENS + 1), repeat=length):
        code = int(_codes(torch.tensor(visible)))
        # Masked dimensions stay, visible ones are fixed: what is left is p(masked, visible).
        left = joint[tuple(slice(None) if digit == TOKENS else digit for digit in visible)]
        masked = [position for position, digit in enumerate(visible) if digit == TOKENS]
        for axis, position in enumerate(masked):
            others = [other for other in range(len(masked)) if other != axis]
            table[code, position] = (left.sum(dim=others) if others else left).log()
    return TableDenoiser(table)


def inconsistent_denoiser(length: int, seed: int = 0) -> TableDenoiser:
    """Arbitrary predictions, conditionals of no joint distribution."""
    generator = torch.Generator().manual_seed(seed)
    return TableDenoiser(torch.randn((TOKENS + 1) ** length, length, TOKENS, generator=generator))


def hidden(tokens: list[int], masked: set[int] | frozenset[int]) -> list[int]:
    return [MASK if position in masked else token for position, token in enumerate(tokens)]


def expected_elbo(denoiser: TableDenoiser, tokens: list[int], law: Law) -> float:
    """Expectation, under a law of masked sets, of their summed log-probabilities times L / k."""
    return expected_value(denoiser, tokens, {chosen: p * len(tokens) / len(chosen) for chosen, p in law.items()})


def expected_value(denoiser: TableDenoiser, tokens: list[int], coefficients: Law) -> float:
    """Sum over sets of masked tokens of coefficient * summed log-probabilities."""
    total = 0.0
    for masked, coefficient in coefficients.items():
        visible = hidden(tokens, masked)
        total += coefficient * sum(denoiser.log_prob(visible, position, tokens[position]) for position in masked)
    return total


def expected_eubo(denoiser: TableDenoiser, tokens: list[int], beta: float) -> float:
    """The upper bound at its population value under uniform masks, by enumeration."""
    law = law_of("uniform", len(tokens))
    total = 0.0
    for position, token in enumerate(tokens):
        moment = sum(
            probability
            * exp(beta * denoiser.log_prob(hidden(tokens, masked), position, token))
            * len(tokens)
            / len(masked)
            for masked, probability in law.items()
            if position in masked
        )
        total += log(moment) / beta
    return total


def order_log_probs(denoiser: TableDenoiser, tokens: list[int]) -> Tensor:
    """Log-probability of the completion when decoded one token at a time, for each of the L! orders."""
    found = []
    for order in permutations(range(len(tokens))):
        visible, total = [MASK] * len(tokens), 0.0
        for position in order:
            total += denoiser.log_prob(visible, position, tokens[position])
            visible[position] = tokens[position]
        found.append(total)
    return torch.tensor(found, dtype=torch.float64)


def completion_rows(tokens: list[int], rows: int = 1) -> Sequences:
    """The same completion in rows of different keys."""
    length = len(tokens)
    return make_rows(torch.full((rows,), length), width=length, prompt=2, ids=torch.tensor(tokens).repeat(rows, 1))


def whole_law(sequences: Sequences) -> Corruption:
    """Every set of the uniform law as a draw, repeated so that the mean over draws is the expectation."""
    length = sequences.completion_mask.shape[1]
    law = law_of("uniform", length)
    unit = lcm(*(round(1 / probability) for probability in law.values()))
    sets = [masked for masked, probability in law.items() for _ in range(round(probability * unit))]
    masked = torch.zeros(len(sequences.row_keys), len(sets), sequences.token_ids.shape[1], dtype=torch.bool)
    for draw, chosen in enumerate(sets):
        masked[:, draw, [sequences.prompt_length + position for position in chosen]] = True
    scored = masked[:, :, sequences.prompt_length :]
    return Corruption(masked=masked, weight=scored * (length / scored.sum(dim=2, keepdim=True)))


def estimator(**settings: Any) -> MonteCarloElbo:
    draws = 3 if settings.get("masking") == "coupled" else 2
    return MonteCarloElbo(**{"reduction": "sum", "block_size": BLOCK, "draws": draws, **settings})


def estimate(
    measure: MonteCarloElbo, denoiser: TableDenoiser, rows: Sequences, update: int | None = None
) -> LikelihoodEstimate:
    return measure(denoiser, rows, measure.corrupt(rows, update=update), vocabulary=VOCABULARY)


def ragged_rows(*, width: int = 6, padding: int = 1) -> Sequences:
    lengths = torch.arange(1, width + 1).repeat(2)
    ids = torch.randint(0, TOKENS, (len(lengths), width), generator=torch.Generator().manual_seed(1))
    return make_rows(lengths, width, padding=padding, ids=ids)
