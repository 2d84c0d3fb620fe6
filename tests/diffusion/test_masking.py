from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.diffusion.laws import BY_SHARE, DRAWS, deviation, law_of, make_rows, set_codes

from stabledrl.diffusion import CONTEXT_MASK_RATE, block_random, stratified, uniform

by_share = pytest.mark.parametrize("name", sorted(BY_SHARE))
every_law = pytest.mark.parametrize("name", sorted(DRAWS))
of_one_law = pytest.mark.parametrize("name", [*sorted(BY_SHARE), "antithetic"])
"""All whose draws follow one law, whatever their number."""


def all_lengths(width: int) -> torch.Tensor:
    return torch.arange(1, width + 1).repeat_interleave(50)


@pytest.mark.parametrize("length", [1, 3, 6])
@of_one_law
def test_each_draw_follows_the_enumerated_law(name: str, length: int) -> None:
    rows = make_rows(torch.full((40_000,), length), width=9)
    law = law_of(name, length)
    assert sum(law.values()) == pytest.approx(1)
    expected = torch.zeros(2**length, dtype=torch.float64)
    for chosen, probability in law.items():
        expected[sum(2**place for place in chosen)] = probability * 40_000
    masked = DRAWS[name](rows, 2, 3).masked[:, :, rows.prompt_length :][:, :, :length]
    for draw in range(2):
        counts = set_codes(masked[:, draw]).bincount(minlength=2**length)
        assert deviation(counts, expected) < 5


@pytest.mark.parametrize("block", [2, 3, 4])
def test_a_last_block_cut_short_by_the_end_is_picked_as_often_and_its_own_tokens_counted(block: int) -> None:
    rows = make_rows(torch.full((40_000,), 5), width=12)
    expected = torch.zeros(32, dtype=torch.float64)
    for chosen, probability in law_of("block_random", 5, block=block).items():
        expected[sum(2**place for place in chosen)] = probability * 40_000
    masked = block_random(rows, 1, 0, block).masked[:, 0, rows.prompt_length :][:, :5]
    assert deviation(set_codes(masked).bincount(minlength=32), expected) < 5


def independence(name: str, first: torch.Tensor, second: torch.Tensor) -> float:
    """How far the pairs of two views of three tokens are from a product of the law with itself."""
    law = torch.zeros(8, dtype=torch.float64)
    for chosen, probability in law_of(name, 3).items():
        law[sum(2**place for place in chosen)] = probability
    pairs = set_codes(first[:, -3:]) * 8 + set_codes(second[:, -3:])
    return deviation(pairs.bincount(minlength=64), torch.outer(law, law).flatten() * len(pairs))


@of_one_law
def test_every_draw_is_independent_of_those_of_other_steps(name: str) -> None:
    rows = make_rows(torch.full((20_000,), 3), width=3)
    steps = [DRAWS[name](rows, 4, step).masked for step in range(3)]
    for step in (1, 2):
        for before in range(step):
            for i, j in product(range(4), range(4)):
                assert independence(name, steps[step][:, i], steps[before][:, j]) < 5


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("uniform", [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
        ("block_random", [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
        ("complementary", [(0, 2), (0, 3), (1, 2), (1, 3)]),
    ],
)
def test_draws_of_one_step_are_independent_but_for_pairs_and_strata(name: str, pairs: list[tuple[int, int]]) -> None:
    masked = DRAWS[name](make_rows(torch.full((20_000,), 3), width=3), 4, 0).masked
    assert all(independence(name, masked[:, i], masked[:, j]) < 5 for i, j in pairs)


@pytest.mark.parametrize("length", [1, 4, 6, 7])
@pytest.mark.parametrize("draws", [1, 2, 3, 6])
def test_stratified_counts_are_spread_evenly(draws: int, length: int) -> None:
    rows = make_rows(torch.full((2_000,), length), width=7)
    counts = stratified(rows, draws, 0).masked.sum(dim=2)
    assert counts.min() == 1
    assert counts.max() == length
    # Cyclic steps of L / K: below every count lie its fair share of the draws, give or take one.
    for level in range(1, length + 1):
        below = (counts <= level).sum(dim=1)
        assert (below >= draws * level // length).all()
        assert (below <= -(-draws * level // length)).all()


def test_as_many_stratified_draws_as_tokens_take_every_count_once() -> None:
    counts = stratified(make_rows(torch.full((500,), 6), width=8), 6, 2).masked.sum(dim=2)
    assert torch.equal(counts.sort(dim=1).values, torch.arange(1, 7).expand(500, 6))


def test_block_random_masks_as_decoding_would_meet_a_completion() -> None:
    rows = make_rows(all_lengths(11), width=11, prompt=6, padding=2)
    masked = block_random(rows, 2, 0, 4).masked[:, :, rows.prompt_length :]
    for length, views in zip(rows.lengths.tolist(), masked.tolist(), strict=True):
        for view in views:
            blocks = [view[start : min(start + 4, length)] for start in range(0, length, 4)]
            assert any(any(block) and all(all(later) for later in blocks[i + 1 :]) for i, block in enumerate(blocks))


def test_block_random_masks_the_context_at_its_rate() -> None:
    rows = make_rows(torch.full((20_000,), 2), width=2, prompt=5, padding=3)
    prompt = block_random(rows, 2, 0, 2).masked[:, :, : rows.prompt_length]
    assert not prompt[:, :, :3].any()
    expected = torch.tensor([1 - CONTEXT_MASK_RATE, CONTEXT_MASK_RATE], dtype=torch.float64) * prompt.shape[0]
    assert CONTEXT_MASK_RATE == 0.15
    for draw in range(2):
        for position in range(3, 8):
            assert deviation(prompt[:, draw, position].long().bincount(minlength=2), expected) < 5
    both = (prompt[:, 0, 3:] & prompt[:, 1, 3:]).double().mean()
    assert both == pytest.approx(CONTEXT_MASK_RATE**2, abs=0.003)


@pytest.mark.parametrize("name", sorted(DRAWS.keys() - {"block_random"}))
def test_the_other_laws_leave_the_prompt_clean(name: str) -> None:
    rows = make_rows(all_lengths(6), width=6)
    assert not DRAWS[name](rows, 2, 0).masked[:, :, : rows.prompt_length].any()


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(BY_SHARE)),
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    pairs=st.integers(1, 3),
    step=st.integers(0, 9),
    padding=st.integers(0, 3),
    first_id=st.integers(0, 10**9),
)
def test_every_draw_scores_a_token_and_weighs_it_by_its_share(
    name: str, lengths: list[int], pairs: int, step: int, padding: int, first_id: int
) -> None:
    rows = make_rows(torch.tensor(lengths), width=8, padding=padding, first_id=first_id)
    corruption = DRAWS[name](rows, 2 * pairs, step)
    assert corruption.masked.shape == (len(lengths), 2 * pairs, rows.token_ids.shape[1])
    completion = corruption.masked[:, :, rows.prompt_length :]
    assert not (completion & ~rows.completion_mask[:, None]).any()
    assert not (corruption.masked & ~rows.attention_mask[:, None]).any()
    count = completion.sum(dim=2)
    assert (count >= 1).all()
    assert corruption.weight.dtype == torch.float32
    expected = completion * (rows.lengths[:, None] / count)[:, :, None]
    torch.testing.assert_close(corruption.weight, expected)


@every_law
def test_masks_do_not_depend_on_batch_size_or_row_order(name: str) -> None:
    rows = make_rows(all_lengths(7), width=7)
    whole = DRAWS[name](rows, 2, 1)
    order = torch.randperm(len(rows.row_keys))
    for chosen in (order, order[:1], order[:13]):
        part = DRAWS[name](rows.select(chosen), 2, 1)
        assert torch.equal(part.masked, whole.masked[chosen])
        assert torch.equal(part.weight, whole.weight[chosen])


@every_law
def test_masks_do_not_depend_on_padding_or_columns_after_the_end(name: str) -> None:
    lengths, width, prompt = all_lengths(7), 7, 4
    narrow = DRAWS[name](make_rows(lengths, width, prompt=prompt), 2, 1)
    for padding, extra in [(3, 0), (0, 5), (2, 9)]:
        wide = DRAWS[name](make_rows(lengths, width + extra, prompt=prompt, padding=padding), 2, 1)
        assert torch.equal(wide.masked[:, :, padding : padding + prompt + width], narrow.masked)
        assert wide.masked.sum() == narrow.masked.sum()
        assert torch.equal(wide.weight[:, :, :width], narrow.weight)
        assert not wide.weight[:, :, width:].any()


@every_law
def test_masks_depend_on_keys_alone_not_on_global_random_state(name: str) -> None:
    rows = make_rows(all_lengths(6), width=6)
    torch.manual_seed(1)
    first, state = DRAWS[name](rows, 2, 0), torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(DRAWS[name](rows, 2, 0).masked, first.masked)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)
    other = make_rows(all_lengths(6), width=6, first_id=10_000)
    assert not torch.equal(DRAWS[name](other, 2, 0).masked, first.masked)


@pytest.mark.parametrize("draws", [6, 14])
@every_law
def test_masks_do_not_depend_on_the_default_dtype(name: str, draws: int) -> None:
    rows = make_rows(torch.full((1_000,), 97), width=97)
    expected = DRAWS[name](rows, draws, 0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = DRAWS[name](rows, draws, 0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found.masked, expected.masked)
    assert torch.equal(found.weight, expected.weight)


def test_rows_of_the_same_length_are_masked_differently() -> None:
    masked = uniform(make_rows(torch.full((300,), 64), width=64), 1, 0).masked[:, 0]
    assert len(masked.unique(dim=0)) > 290
