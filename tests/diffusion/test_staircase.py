import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_mask

from stabledrl.diffusion import staircase_mask
from stabledrl.diffusion.staircase import FLEX_TILE, staircase_block_mask


def layout(clean_blocks: int, noised: list[int], draws: int, size: int) -> tuple[Tensor, Tensor]:
    """Blocks and streams of [clean | noised 1 | ...], `noised` naming the blocks that each noised copy holds."""
    block = [number for number in range(clean_blocks) for _ in range(size)]
    stream = [0] * len(block)
    for draw in range(1, draws + 1):
        block += [number for number in noised for _ in range(size)]
        stream += [draw] * (len(noised) * size)
    return torch.tensor(block), torch.tensor(stream)


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_every_pair_attends_as_the_rule_says(draws: int) -> None:
    block, stream = layout(3, [1, 2, 3], draws, 2)
    real = torch.ones(2, len(block), dtype=torch.bool)
    real[1, :2] = False
    allowed = staircase_mask(block, stream, real)
    assert allowed.shape == (2, 1, len(block), len(block))
    assert allowed.dtype == torch.bool
    for row in range(2):
        for q in range(len(block)):
            for k in range(len(block)):
                if stream[q] == 0:
                    expected = stream[k] == 0 and block[k] <= block[q]
                else:
                    expected = (
                        block[k] < block[q] if stream[k] == 0 else stream[k] == stream[q] and block[k] == block[q]
                    )
                expected = bool(expected) and bool(real[row, k])
                if q == k and not real[row, q]:
                    expected = True
                assert bool(allowed[row, 0, q, k]) is expected, (row, q, k)


def test_no_query_is_left_without_a_key_even_in_padding() -> None:
    block, stream = layout(2, [1, 2], 2, 3)
    real = torch.ones(1, len(block), dtype=torch.bool)
    real[:, :3] = False
    assert staircase_mask(block, stream, real).any(dim=3).all()


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("size", [4, 8, 32])
def test_block_mask_is_the_written_out_mask_in_every_pair_and_every_tile(size: int, draws: int) -> None:
    block, stream = layout(320 // size, list(range(192 // size, 320 // size)), draws, size)
    extra = -len(block) % FLEX_TILE
    block, stream = (torch.nn.functional.pad(part, (0, extra)) for part in (block, stream))
    columns = len(block)
    real = torch.arange(columns) < columns - extra
    real = torch.stack([real, real & (torch.arange(columns) >= 5 * size)])
    expected, found = staircase_mask(block, stream, real), staircase_block_mask(block, stream, real)
    assert found.shape == (2, 1, columns, columns)
    assert torch.equal(create_mask(found.mask_mod, 2, 1, columns, columns, "cpu"), expected)
    tiles = expected.unflatten(2, (-1, FLEX_TILE)).unflatten(4, (-1, FLEX_TILE))
    assert torch.equal(found.to_dense().bool(), tiles.any(dim=5).any(dim=3))
    assert torch.equal(found.full_kv_num_blocks.long(), tiles.all(dim=5).all(dim=3).sum(dim=3))
    assert found.full_kv_num_blocks.any()
    assert found.sparsity() > 30
