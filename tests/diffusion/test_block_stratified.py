import pytest
import torch
from tests.diffusion.laws import deviation, law_of, make_rows, set_codes

from stabledrl.diffusion import block_stratified


@pytest.mark.parametrize("draws", [1, 3])
def test_every_block_follows_the_uniform_law_on_its_own(draws: int) -> None:
    rows = make_rows(torch.full((30_000,), 7), width=9, prompt=6)  # Blocks of 4: 2, 4 and 1 scored tokens.
    masked = block_stratified(rows, draws, 2, 4).masked[:, :, 6:]
    assert not masked[:, :, 7:].any()
    for first, last in ((0, 2), (2, 6), (6, 7)):
        expected = torch.zeros(2 ** (last - first), dtype=torch.float64)
        for chosen, probability in law_of("uniform", last - first).items():
            expected[sum(2**place for place in chosen)] = probability * 30_000
        for draw in range(draws):
            assert deviation(set_codes(masked[:, draw, first:last]).bincount(minlength=len(expected)), expected) < 5


def test_weights_are_each_blocks_scored_over_masked_tokens() -> None:
    rows = make_rows(torch.tensor([1, 5, 8, 10]), width=10, prompt=7, padding=2)
    corruption = block_stratified(rows, 2, 0, 4)
    assert corruption.weight.dtype == torch.float32
    assert not corruption.masked[:, :, :9].any()
    masked = corruption.masked[:, :, 9:]
    for row, length in enumerate(rows.lengths.tolist()):
        for draw in range(2):
            for place in range(10):
                mates = [other for other in range(length) if (other + 7) // 4 == (place + 7) // 4]
                count = int(masked[row, draw, mates].sum())
                assert count >= (place < length)
                expected = len(mates) / count if masked[row, draw, place] else 0.0
                assert float(corruption.weight[row, draw, place]) == pytest.approx(expected)


def test_counts_of_a_block_are_spread_over_its_draws() -> None:
    rows = make_rows(torch.full((500,), 8), width=8, prompt=4)
    masked = block_stratified(rows, 4, 0, 4).masked[:, :, 4:]
    for block in (masked[:, :, :4], masked[:, :, 4:]):
        assert torch.equal(block.sum(dim=2).sort(dim=1).values, torch.arange(1, 5).expand(500, 4))


def test_with_one_draw_counts_are_spread_over_the_blocks() -> None:
    rows = make_rows(torch.full((500,), 16), width=16, prompt=4)
    counts = block_stratified(rows, 1, 0, 4).masked[:, 0, 4:].unflatten(1, (4, 4)).sum(dim=2)
    assert torch.equal(counts.sort(dim=1).values, torch.arange(1, 5).expand(500, 4))


def test_masks_depend_on_the_row_alone() -> None:
    lengths = torch.arange(1, 9).repeat(20)
    rows = make_rows(lengths, width=8, prompt=6)
    whole = block_stratified(rows, 2, 1, 4)
    order = torch.randperm(len(lengths))[:30]
    part = block_stratified(rows.select(order), 2, 1, 4)
    assert torch.equal(part.masked, whole.masked[order])
    assert torch.equal(part.weight, whole.weight[order])
    wide = block_stratified(make_rows(lengths, width=11, prompt=6, padding=3), 2, 1, 4)
    assert torch.equal(wide.masked[:, :, 3:17], whole.masked)
    assert not wide.masked[:, :, 17:].any()
    assert not torch.equal(block_stratified(rows, 2, 2, 4).masked, whole.masked)
