import pytest
import torch
from tests.diffusion.laws import make_rows

from stabledrl.diffusion.masking.mean_field import mean_field


@pytest.mark.parametrize("draws", [1, 3])
def test_the_whole_completion_is_masked_with_weight_one_and_nothing_after_its_end(draws: int) -> None:
    rows = make_rows(torch.tensor([1, 3, 6]), 6, padding=2)
    corruption = mean_field(rows, draws, 0, 0.15)
    expected = rows.completion_mask[:, None].expand(-1, draws, -1)
    assert torch.equal(corruption.masked[:, :, rows.prompt_length :], expected)
    assert torch.equal(corruption.weight, expected.float())


@pytest.mark.parametrize("rate", [0.0, 0.15, 0.5])
def test_prompt_tokens_are_masked_at_the_given_rate_in_every_place_and_draw(rate: float) -> None:
    rows = make_rows(torch.ones(5000, dtype=torch.int64), 2, prompt=6)
    prompt = mean_field(rows, 2, 0, rate).masked[:, :, :6].double()
    assert (prompt.mean(dim=0) - rate).abs().max() <= 4.5 * (rate * (1 - rate) / 5000) ** 0.5
    if rate:
        # Places and draws are independent of each other.
        assert (torch.corrcoef(prompt.flatten(1).T) - torch.eye(12)).abs().max() < 4.5 / 5000**0.5


def test_padding_is_never_masked_and_changes_nothing() -> None:
    lengths = torch.arange(1, 7)
    bare, padded = make_rows(lengths, 6, prompt=9), make_rows(lengths, 6, prompt=9, padding=50)
    masked = mean_field(padded, 2, 0, 0.5).masked
    assert not masked[:, :, :50].any()
    assert torch.equal(masked[:, :, 50:], mean_field(bare, 2, 0, 0.5).masked)


def test_rows_and_steps_draw_on_their_own_and_again_the_same() -> None:
    rows = make_rows(torch.full((20,), 4), 4, prompt=60)
    first, again, later = (mean_field(rows, 2, step, 0.5).masked for step in (0, 0, 1))
    assert torch.equal(first, again)
    views = torch.cat([first, later], dim=1).flatten(0, 1)
    assert len(views.unique(dim=0)) == len(views)
    part = mean_field(rows.select(slice(7, 9)), 2, 0, 0.5).masked
    assert torch.equal(part, first[7:9])
