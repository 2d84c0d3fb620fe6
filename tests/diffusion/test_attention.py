from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.diffusion.attention import bidirectional_mask, block_causal_mask, check_attention, positions_from_mask
from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo, StaircaseElbo
from stabledrl.samplers import BlockDiffusionSampler, SemiAutoregressiveSampler

MASKS = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=4)
)


@given(rows=MASKS)
def test_every_query_attends_exactly_the_real_tokens(rows: list[list[bool]]) -> None:
    attention = bidirectional_mask(torch.tensor(rows))
    width = len(rows[0])
    assert attention.shape == (len(rows), 1, width, width)
    assert attention.dtype == torch.bool
    for row, real in enumerate(rows):
        for query in range(width):
            assert attention[row, 0, query].tolist() == real


@given(rows=MASKS)
def test_real_tokens_are_numbered_from_zero(rows: list[list[bool]]) -> None:
    positions = positions_from_mask(torch.tensor(rows))
    assert positions.dtype == torch.int64
    for row, real in zip(positions.tolist(), rows):
        assert [position for position, there in zip(row, real) if there] == list(range(sum(real)))
        assert min(row) >= 0


def test_left_padding_gets_position_zero() -> None:
    mask = torch.tensor([[False, False, True, True], [True, True, True, True]])
    assert positions_from_mask(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]


@given(padding=st.integers(0, 3), length=st.integers(1, 8), block_size=st.integers(1, 5))
def test_block_causal_query_attends_its_own_and_earlier_blocks(padding: int, length: int, block_size: int) -> None:
    real = torch.tensor([[False] * padding + [True] * length])
    attention = block_causal_mask(real, positions_from_mask(real), block_size)
    assert attention.shape == (1, 1, padding + length, padding + length)
    assert not attention[..., :padding].any()
    # The grid is the row's own: padding does not move it.
    for query in range(length):
        attended = attention[0, 0, padding + query, padding:].tolist()
        assert attended == [key // block_size <= query // block_size for key in range(length)]


@given(padding=st.integers(0, 3), length=st.integers(1, 8), block_size=st.integers(1, 5))
def test_no_block_causal_softmax_is_empty(padding: int, length: int, block_size: int) -> None:
    real = torch.tensor([[False] * padding + [True] * length])
    assert block_causal_mask(real, positions_from_mask(real), block_size).any(-1).all()


def test_one_block_over_everything_is_bidirectional() -> None:
    real = torch.tensor([[False, True, True, True, True], [True] * 5])
    one_block = block_causal_mask(real, positions_from_mask(real), 5)
    assert torch.equal(one_block, bidirectional_mask(real))


@pytest.mark.parametrize(
    ("policy", "part", "told"),
    [
        (
            4,
            SemiAutoregressiveSampler(8, 4, 8),
            "SemiAutoregressiveSampler is made for full .* block_size 4",
        ),
        (4, MonteCarloElbo(), "MonteCarloElbo is made for full .* block_size 4"),
        (
            4,
            BlockDiffusionSampler(16, 8, 16),
            "BlockDiffusionSampler has block_size 8, .* of 4 tokens; use block_size 4",
        ),
        (8, StaircaseElbo(block_size=4), "StaircaseElbo has block_size 4, .* of 8 tokens; use block_size 8"),
        (None, BlockDiffusionSampler(16, 8, 16), "BlockDiffusionSampler has block_size 8, .*everything"),
        (None, StaircaseElbo(block_size=4), "StaircaseElbo has block_size 4, .*everything"),
    ],
)
def test_what_is_made_for_another_attention_is_refused(policy: int | None, part: Any, told: str) -> None:
    with pytest.raises(UserInputError, match=told) as refusal:
        check_attention(policy, part)
    assert "\n" not in str(refusal.value)


def test_what_is_made_for_the_policys_attention_passes() -> None:
    check_attention(None, SemiAutoregressiveSampler(8, 4, 8), MonteCarloElbo())
    check_attention(4, BlockDiffusionSampler(16, 4, 16), StaircaseElbo(block_size=4))
