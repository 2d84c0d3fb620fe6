"""R3, R4: what happens between a denoising step's logits and its decided tokens."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.speed import plain
from benchmarks.speed.comparison import Comparison
from stabledrl.samplers.categorical import mask_candidates, sample_tokens
from stabledrl.samplers.remasking import transfer
from stabledrl.types import Vocabulary

TEMPERATURE = 0.9


def r3(
    *, vocabulary_size: int = 126464, prompt: int = 16, completion: int = 64, block_size: int = 32
) -> list[Comparison]:
    """Candidates of a step: at the masked positions of a block, against noise for the whole sequence's vocabulary."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = Vocabulary(mask_token_id=2, pad_token_id=0, end_token_ids=(1,), num_candidates=vocabulary_size - 115)
    logits = 3 * torch.randn(1, prompt + completion, vocabulary_size, generator=generator)
    draws = torch.rand(1, prompt + completion, generator=generator, dtype=torch.float64)
    found = []
    for case, count, goal in (
        ("all of a block masked", block_size, None),
        ("half of a block masked", block_size // 2, 18.0),
    ):
        # Every other position of the block for the half: what is masked need not lie side by side.
        keep = prompt + torch.arange(0, block_size, block_size // count)
        ours = partial(_ours, logits[:, keep], draws[:, keep], vocabulary)
        check = partial(_check_candidates, ours, logits, draws, keep, vocabulary)
        baseline = partial(_baseline, logits, vocabulary)
        found.append(Comparison(id="R3", case=case, ours=ours, baseline=baseline, check=check, gate=8.0, goal=goal))
    return found


def _ours(logits: Tensor, draws: Tensor, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    return sample_tokens(mask_candidates(logits, vocabulary), draws, TEMPERATURE)


def _baseline(logits: Tensor, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    return plain.gumbel_draw(TEMPERATURE)(mask_candidates(logits, vocabulary), 0)


def _check_candidates(
    ours: Callable[[], tuple[Tensor, Tensor]], logits: Tensor, draws: Tensor, keep: Tensor, vocabulary: Vocabulary
) -> None:
    tokens, probability = ours()
    exact = mask_candidates(logits, vocabulary)[:, keep].double()
    cumulative = (exact / TEMPERATURE).softmax(dim=-1).cumsum(dim=-1)
    expected = torch.searchsorted(cumulative, draws[:, keep, None], right=True).squeeze(-1)
    assert torch.equal(tokens, expected), "tokens differ from the inverse CDF in float64"
    own = exact.softmax(dim=-1).gather(-1, expected[..., None]).squeeze(-1)
    torch.testing.assert_close(probability.double(), own, rtol=1e-5, atol=0)


def r4(*, rows: int = 16, prompt: int = 144, completion: int = 256, block_size: int = 32) -> list[Comparison]:
    """Which positions a step decides: in a block and for all rows at once, against a loop over rows' whole sequences.

    A block in the middle of the completion. As it is masked at a block's first step, and where a third is decided.
    """
    generator = torch.Generator().manual_seed(0)
    start = prompt + completion // 2
    block, length = slice(start, start + block_size), prompt + completion
    confidence = torch.rand(rows, length, generator=generator)
    found = []
    for case, share in (("all of a block masked", 1.0), ("two thirds of a block masked", 2 / 3)):
        masked = torch.arange(length).expand(rows, -1) >= start + block_size
        masked[:, block] = torch.rand(rows, block_size, generator=generator).argsort(dim=1) < share * block_size
        ours = partial(_selected, confidence[:, block].contiguous(), None if share == 1 else masked[:, block])
        baseline = partial(_selected_per_row, confidence, masked, block.stop)
        check = partial(_check_selection, ours, baseline, block)
        found.append(Comparison(id="R4", case=f"{rows} rows, {case}", ours=ours, baseline=baseline, check=check))
    return [replace(comparison, gate=8.0, goal=20.0, rounds=20) for comparison in found]


_TIMES, _COUNT = 100, 4
"""A selection takes microseconds: repeated, so that the clock can measure it."""


def _selected(confidence: Tensor, masked: Tensor | None) -> list[Tensor]:
    return [transfer(confidence, masked, _COUNT) for _ in range(_TIMES)]


def _selected_per_row(confidence: Tensor, masked: Tensor, end: int) -> list[Tensor]:
    found = []
    for _ in range(_TIMES):
        left = torch.where(masked, confidence, -torch.inf)
        left[:, end:] = -torch.inf
        found.append(plain.select_per_row(left, _COUNT))
    return found


def _check_selection(ours: Callable[[], list[Tensor]], baseline: Callable[[], list[Tensor]], block: slice) -> None:
    own, other = ours()[0], baseline()[0]
    assert (other.sum(dim=1) == _COUNT).all()
    assert torch.equal(own, other[:, block]), "chosen positions differ"
