import pytest
import torch
from tests.diffusion.laws import POINTS, deviation, make_rows, rate_law, set_codes

from stabledrl.diffusion import quadrature
from stabledrl.diffusion.masking.quadrature import gauss_legendre


@pytest.mark.parametrize("points", sorted(POINTS))
def test_points_and_weights_are_those_of_the_textbook(points: int) -> None:
    found = torch.stack(gauss_legendre(points), dim=1)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor(POINTS[points], dtype=torch.float64))


@pytest.mark.parametrize("length", [1, 2, 3, 6])
@pytest.mark.parametrize("points", sorted(POINTS))
def test_every_draw_masks_at_its_own_rate_given_that_it_masks_something(points: int, length: int) -> None:
    rows = make_rows(torch.full((40_000,), length), width=9)
    masked = quadrature(rows, points, 3).masked[:, :, rows.prompt_length :]
    assert not masked[:, :, length:].any()
    for draw, (rate, _) in enumerate(POINTS[points]):
        expected = torch.zeros(2**length, dtype=torch.float64)
        for chosen, probability in rate_law(length, rate).items():
            expected[sum(2**place for place in chosen)] = probability * 40_000
        counts = set_codes(masked[:, draw, :length]).bincount(minlength=2**length)
        assert deviation(counts, expected) < 5


@pytest.mark.parametrize("points", sorted(POINTS))
def test_weights_make_up_for_the_draws_without_a_masked_token(points: int) -> None:
    lengths = torch.arange(1, 10).repeat_interleave(20)
    rows = make_rows(lengths, width=9)
    corruption = quadrature(rows, points, 0)
    masked = corruption.masked[:, :, rows.prompt_length :]
    assert masked.any(dim=2).all()
    for draw, (rate, weight) in enumerate(POINTS[points]):
        factor = points * weight / rate * (1 - (1 - rate) ** lengths.double())
        expected = torch.where(masked[:, draw], factor[:, None].float(), 0.0)
        torch.testing.assert_close(corruption.weight[:, draw], expected)


def test_draws_of_a_row_are_independent() -> None:
    codes = set_codes(quadrature(make_rows(torch.full((20_000,), 3), width=3), 2, 0).masked[:, :, 4:])
    first, second = (codes[:, draw].bincount(minlength=8).double() / 20_000 for draw in range(2))
    pairs = (codes[:, 0] * 8 + codes[:, 1]).bincount(minlength=64)
    assert deviation(pairs, torch.outer(first, second).flatten() * 20_000) < 5


@pytest.mark.parametrize("points", [8, 40])
def test_long_rows_and_many_points_keep_finite_weights_and_mask_a_token(points: int) -> None:
    rows = make_rows(torch.tensor([1, 2, 4000]), width=4000)
    corruption = quadrature(rows, points, 0)
    assert corruption.weight.isfinite().all()
    assert ((corruption.weight > 0).sum(dim=2) >= 1).all()
