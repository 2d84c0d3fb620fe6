import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stabledrl.diffusion.attention import block_causal_mask, positions_from_mask
from stabledrl.diffusion.block_grid import BlockGrid, attend_blocks


def grid_of(lengths: list[int], size: int, padding: int = 0) -> tuple[BlockGrid, torch.Tensor]:
    width = max(lengths) + padding
    mask = torch.arange(width) >= width - torch.tensor(lengths)[:, None]
    return BlockGrid.of(mask, size), mask


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 13), min_size=1, max_size=5), size=st.integers(1, 6), padding=st.integers(0, 3))
def test_laid_out_rows_keep_their_tokens_and_meet_at_block_borders(lengths: list[int], size: int, padding: int) -> None:
    grid, mask = grid_of(lengths, size, padding)
    response = 7
    real = torch.cat([mask, torch.ones(len(lengths), response, dtype=torch.bool)], dim=1)
    values = torch.arange(real.numel()).reshape(real.shape)
    last = grid.prompt_blocks + int(grid.response_blocks(torch.full((len(lengths),), response)).max())
    columns = torch.arange(last * size)
    found, places, index = grid.lay_out(values, columns, -1), grid.positions(columns), grid.response_index(columns)
    for row, length in enumerate(lengths):
        assert found[row][found[row] >= 0].tolist() == values[row][real[row]].tolist()
        assert int(grid.offset[row]) % size == 0
        own = columns[int(grid.offset[row]) :]
        assert places[row, own].tolist() == list(range(len(own)))
        assert grid.real(columns)[row].tolist() == (columns >= grid.offset[row]).tolist()
        # The first response token lies in the first response block, at position `length` of its row.
        (at,) = (index[row] == 0).nonzero().flatten().tolist()
        assert grid.start <= at < grid.start + size
        assert int(places[row, at]) == length
        blocks = {int(places[row, column]) // size for column in range(at, at + response)}
        assert int(grid.response_blocks(torch.full((len(lengths),), response))[row]) == len(blocks)


def test_attention_by_columns_is_attention_by_positions() -> None:
    grid, _ = grid_of([9, 6, 3, 1], 4)
    columns = torch.arange(16)
    real = grid.real(columns)
    found = attend_blocks(columns, columns, real, 4)
    expected = block_causal_mask(real, positions_from_mask(real), 4)
    for row in range(4):
        assert torch.equal(found[row, 0][real[row]], expected[row, 0][real[row]])
    assert found.any(dim=3).all()
    assert torch.equal(attend_blocks(columns[8:], columns, real, 4), found[:, :, 8:])
