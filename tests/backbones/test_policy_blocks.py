import pytest
import torch
from torch import Tensor

from stabledrl.backbones import NewPolicy, Policy

TOLERANCE = 1e-5
BLOCK, LENGTH = 3, 9


def made(*, block_size: int | None = None, shifted: bool = False) -> Policy:
    base = NewPolicy(hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, initializer_range=0.3).build()
    return Policy(
        base.model,
        base.tokenizer,
        base.vocabulary,
        family="test",
        source=None,
        block_size=block_size,
        shifted=shifted,
    )


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(2, 28, (2, LENGTH))


def other(tokens: Tensor, position: int) -> Tensor:
    changed = tokens.clone()
    changed[:, position] = (changed[:, position] - 1) % 28
    return changed


@pytest.mark.parametrize("masked", [True, False], ids=["with a mask", "without a mask"])
@pytest.mark.parametrize("position", range(LENGTH))
@torch.no_grad()
def test_token_moves_its_own_and_later_blocks_only(tokens: Tensor, position: int, masked: bool) -> None:
    policy = made(block_size=BLOCK)
    mask = torch.ones(2, LENGTH, dtype=torch.bool) if masked else None
    moved = (policy.logits(tokens, mask) - policy.logits(other(tokens, position), mask)).abs().amax((0, 2))
    first = position // BLOCK * BLOCK
    assert (moved[:first] == 0).all()
    assert (moved[first:] > 0.01).all()


@pytest.mark.parametrize("width", [1, 2, 3, 7])
@torch.no_grad()
def test_left_padding_moves_neither_blocks_nor_logits(tokens: Tensor, width: int) -> None:
    policy = made(block_size=BLOCK)
    padded = torch.cat([torch.randint(2, 28, (2, width)), tokens], dim=1)
    mask = torch.arange(width + LENGTH).expand(2, -1) >= width
    torch.testing.assert_close(policy.logits(padded, mask)[:, width:], policy.logits(tokens), atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_blockwise_decoding_on_a_cache_equals_the_whole_forward(tokens: Tensor) -> None:
    policy = made(block_size=BLOCK)
    whole, cache = policy.logits(tokens), policy.new_cache()
    for start in range(0, LENGTH, BLOCK):
        end = start + BLOCK
        part = policy.logits(
            tokens[:, start:end],
            torch.ones(1, 1, BLOCK, end, dtype=torch.bool),
            position_ids=torch.arange(start, end).expand(2, -1),
            cache=cache,
        )
        torch.testing.assert_close(part, whole[:, start:end], atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_shifted_logits_are_those_of_the_position_before(tokens: Tensor) -> None:
    plain, shifted = made(), made(shifted=True)
    torch.testing.assert_close(shifted.logits(tokens)[:, 1:], plain.logits(tokens)[:, :-1])


@torch.no_grad()
def test_shifted_keep_agrees_with_shifted_logits_everywhere(tokens: Tensor) -> None:
    policy = made(shifted=True)
    everywhere = policy.logits(tokens)
    index = torch.tensor([[0, 1, 8], [5, 5, 2]])
    expected = torch.stack([everywhere[row, index[row]] for row in range(2)])
    torch.testing.assert_close(policy.logits(tokens, keep=index), expected, atol=TOLERANCE, rtol=0)
    kept = torch.zeros(2, LENGTH, dtype=torch.bool)
    kept[0, [1, 8]] = True
    kept[1, 4] = True
    torch.testing.assert_close(policy.logits(tokens, keep=kept), everywhere[kept], atol=TOLERANCE, rtol=0)


def test_shifted_model_is_not_asked_for_the_first_token(tokens: Tensor) -> None:
    with pytest.raises(AssertionError, match="first token"):
        made(shifted=True).logits(tokens, keep=torch.ones(2, LENGTH, dtype=torch.bool))


def test_block_size_is_part_of_the_fingerprint() -> None:
    assert made(block_size=3).fingerprint != made(block_size=4).fingerprint
