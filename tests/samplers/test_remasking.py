import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stabledrl.samplers.remasking import transfer, transfer_schedule


def plain_transfer(confidence: Tensor, masked: Tensor, count: int) -> Tensor:
    chosen = torch.zeros_like(masked)
    for row in range(len(masked)):
        order = sorted(
            masked[row].nonzero().flatten().tolist(), key=lambda place: (-float(confidence[row, place]), place)
        )
        chosen[row, order[:count]] = True
    return chosen


@given(st.data(), st.integers(1, 4), st.integers(1, 40))
def test_the_most_confident_masked_positions_are_chosen_and_ties_go_to_the_lower_position(
    data: st.DataObject, rows: int, size: int
) -> None:
    levels = st.sampled_from([0.0, 1e-38, 0.25, 0.5, 0.5000001, 1.0])
    confidence = torch.tensor([data.draw(st.lists(levels, min_size=size, max_size=size)) for _ in range(rows)])
    masked = torch.tensor([data.draw(st.lists(st.booleans(), min_size=size, max_size=size)) for _ in range(rows)])
    count = data.draw(st.integers(1, size))
    assert torch.equal(transfer(confidence, masked, count), plain_transfer(confidence, masked, count))


def test_rows_with_other_masked_positions_choose_equally_many() -> None:
    confidence = torch.rand(64, 256)
    masked = torch.rand(64, 256).argsort(dim=1) < 100
    chosen = transfer(confidence, masked, 17)
    assert (chosen.sum(dim=1) == 17).all()
    assert torch.equal(chosen, plain_transfer(confidence, masked, 17))


def test_without_a_mask_all_positions_count_as_masked() -> None:
    confidence = torch.randint(0, 4, (16, 40)) / 4
    for count in (1, 7, 40):
        chosen = transfer(confidence, None, count)
        assert torch.equal(chosen, plain_transfer(confidence, torch.ones_like(chosen), count))


def test_confidence_of_decided_positions_is_never_read() -> None:
    confidence = torch.tensor([[torch.nan, 0.1, torch.inf, 0.2]])
    masked = torch.tensor([[False, True, False, True]])
    assert transfer(confidence, masked, 1).tolist() == [[False, False, False, True]]


@given(st.integers(1, 300), st.integers(1, 300))
def test_schedule_decides_every_position_once_and_front_loads_the_remainder(block_size: int, steps: int) -> None:
    counts = transfer_schedule(block_size, steps)
    assert len(counts) == steps
    assert sum(counts) == block_size
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(("block_size", "steps", "counts"), [(32, 16, [2] * 16), (24, 12, [2] * 12), (8, 3, [3, 3, 2])])
def test_schedule_examples(block_size: int, steps: int, counts: list[int]) -> None:
    assert transfer_schedule(block_size, steps) == counts
