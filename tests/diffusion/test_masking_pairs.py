import pytest
import torch
from tests.diffusion.laws import deviation, make_rows, rate_law, set_codes

from stabledrl.diffusion import antithetic, complementary, coupled


def all_lengths(width: int) -> torch.Tensor:
    return torch.arange(1, width + 1).repeat_interleave(50)


def test_complementary_pairs_score_every_token_once() -> None:
    rows = make_rows(all_lengths(9)[50:], width=9)
    masked = complementary(rows, 4, 1).masked[:, :, rows.prompt_length :]
    for pair in range(2):
        first, second = masked[:, 2 * pair], masked[:, 2 * pair + 1]
        assert not (first & second).any()
        assert torch.equal(first | second, rows.completion_mask)
    assert (masked[:, 0] != masked[:, 2]).any()


def test_a_complementary_pair_of_one_token_masks_it_twice() -> None:
    corruption = complementary(make_rows(torch.ones(20, dtype=torch.int64), width=5), 2, 0)
    assert (corruption.masked.sum(dim=2) == 1).all()
    assert corruption.masked[:, :, 4].all()
    assert torch.equal(corruption.weight, corruption.masked[:, :, 4:].float())


def test_complementary_draws_come_in_pairs() -> None:
    with pytest.raises(AssertionError):
        complementary(make_rows(torch.tensor([4]), width=4), 3, 0)


@pytest.mark.parametrize("draws", [3, 5])
def test_antithetic_draws_come_in_pairs(draws: int) -> None:
    with pytest.raises(AssertionError):
        antithetic(make_rows(torch.tensor([4]), width=4), draws, 0)


@pytest.mark.parametrize("draws", [1, 2, 4])
def test_coupled_draws_are_one_and_pairs(draws: int) -> None:
    with pytest.raises(AssertionError):
        coupled(make_rows(torch.tensor([4]), width=4), draws, 0)


def test_an_antithetic_pair_scores_every_token_once_by_l_plus_1_over_its_number_of_masked_tokens() -> None:
    rows = make_rows(all_lengths(9), width=9)
    corruption = antithetic(rows, 4, 1)
    masked = corruption.masked[:, :, rows.prompt_length :]
    assert torch.equal(masked[:, 0] ^ masked[:, 1], rows.completion_mask)
    assert torch.equal(masked[:, 2] ^ masked[:, 3], rows.completion_mask)
    assert (masked[:, 0] != masked[:, 2]).any()
    assert corruption.weight.isfinite().all()
    for row, length in enumerate(rows.lengths.tolist()):
        for draw in range(4):
            count = int(masked[row, draw].sum())
            expected = masked[row, draw] * (length + 1) / max(count, 1)
            torch.testing.assert_close(corruption.weight[row, draw], expected.float())


@pytest.mark.parametrize("pairs", [1, 2, 7])
def test_antithetic_counts_are_spread_over_0_to_l(pairs: int) -> None:
    counts = antithetic(make_rows(torch.full((2_000,), 6), width=6), 2 * pairs, 0).masked.sum(dim=2)[:, ::2]
    assert counts.min() == 0
    assert counts.max() == 6
    # Cyclic steps of (L + 1) / n: below every count lie its fair share of the pairs, give or take one.
    for level in range(7):
        below = (counts <= level).sum(dim=1)
        assert (below >= pairs * (level + 1) // 7).all()
        assert (below <= -(-pairs * (level + 1) // 7)).all()


@pytest.mark.parametrize("length", [1, 2, 5])
def test_coupled_views_follow_the_mixture_of_rates_and_are_weighed_by_them(length: int) -> None:
    rows = make_rows(torch.full((60_000,), length), width=7)
    corruption = coupled(rows, 5, 2)
    masked = corruption.masked[:, :, rows.prompt_length :]
    assert torch.equal(masked[:, 0], rows.completion_mask)
    torch.testing.assert_close(corruption.weight[:, 0], rows.completion_mask * 5 / 3)
    expected = torch.zeros(2**length, dtype=torch.float64)
    steps = 2_000
    for step in range(steps):
        rate = 0.2 + 0.6 * (step + 0.5) / steps
        for chosen, probability in rate_law(length, rate).items():
            expected[sum(2**place for place in chosen)] += probability * (1 - (1 - rate) ** length) / steps
    expected[0] = 1 - expected.sum()
    for first in (1, 3):
        assert torch.equal(masked[:, first] ^ masked[:, first + 1], rows.completion_mask)
        for view in (first, first + 1):
            counts = set_codes(masked[:, view, :length]).bincount(minlength=2**length)
            assert deviation(counts, expected * 60_000) < 5
            weight, scored = corruption.weight[:, view], masked[:, view]
            assert (weight[~scored] == 0).all()
            assert (weight[scored] >= 5 / 3 / 0.8 - 1e-5).all()
            assert (weight[scored] <= 5 / 3 / 0.2 + 1e-5).all()


def test_the_weights_of_a_coupled_pair_are_turned_over_rates_that_add_up_to_one() -> None:
    rows = make_rows(torch.full((2_000,), 12), width=12)
    pair = coupled(rows, 3, 0).weight[:, 1:].amax(dim=2)
    both = (pair > 0).all(dim=1)
    assert both.double().mean() > 0.9
    torch.testing.assert_close((1.5 / pair[both]).sum(dim=1), torch.ones(int(both.sum())))
    rate = 1.5 / pair[both, 0]
    assert rate.min() < 0.22
    assert rate.max() > 0.78
    # A view's share of masked tokens follows its rate: tokens masked with another rate would give no unit slope.
    share = (coupled(rows, 3, 0).weight[both, 1] > 0).float().mean(dim=1)
    slope = ((rate - rate.mean()) * share).sum() / (rate - rate.mean()).square().sum()
    assert float(slope) == pytest.approx(1, abs=0.1)


def test_pairs_of_a_row_are_masked_independently() -> None:
    masked = coupled(make_rows(torch.full((20_000,), 2), width=2), 5, 0).masked[:, :, 4:]
    codes = set_codes(masked)
    single = codes[:, 1].bincount(minlength=4).double() / 20_000
    pairs = (codes[:, 1] * 4 + codes[:, 3]).bincount(minlength=16)
    assert deviation(pairs, torch.outer(single, single).flatten() * 20_000) < 5
