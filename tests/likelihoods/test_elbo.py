from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.diffusion.laws import MASK, make_rows
from tests.likelihoods.joint import (
    LAWS,
    LAWS_BY_SHARE,
    TOKENS,
    VOCABULARY,
    TableDenoiser,
    completion_rows,
    estimate,
    estimator,
    inconsistent_denoiser,
    ragged_rows,
)
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo, elbo, token_elbo
from stabledrl.types import Corruption, LikelihoodEstimate, Sequences

every_law = pytest.mark.parametrize("masking", LAWS)
every_law_by_share = pytest.mark.parametrize("masking", LAWS_BY_SHARE)


@every_law_by_share
def test_length_normalised_is_the_mean_over_draws_of_the_mean_over_masked_tokens(masking: str) -> None:
    rows, denoiser = ragged_rows(), inconsistent_denoiser(6)
    total = estimate(estimator(masking=masking), denoiser, rows)
    mean = estimate(estimator(masking=masking, reduction="length_normalized"), denoiser, rows)
    by_draw = total.token_log_probs.sum(dim=2) / total.scored.sum(dim=2)
    torch.testing.assert_close(mean.elbo, by_draw.mean(dim=1))
    torch.testing.assert_close(total.elbo, by_draw.mean(dim=1) * rows.lengths)


def test_elbo_ignores_what_is_not_scored_and_applies_weights() -> None:
    log_probs = torch.tensor([[[-1.0, -9.0, -3.0], [-2.0, -4.0, -9.0]]])
    scored = torch.tensor([[[True, False, True], [True, True, False]]])
    weight, lengths = torch.tensor([[[1.5, 1.5, 0.5], [0.5, 0.25, 0.5]]]), torch.tensor([3])
    assert float(elbo(token_elbo(log_probs, scored, weight), lengths, "sum")) == pytest.approx(
        (1.5 * 1 + 0.5 * 3 + 0.5 * 2 + 0.25 * 4) / -2
    )
    assert float(elbo(token_elbo(log_probs, scored, weight), lengths, "length_normalized")) == pytest.approx(-2.5 / 3)


@every_law
def test_the_policy_sees_one_batch_of_corrupted_rows_and_is_asked_for_scored_positions_only(masking: str) -> None:
    rows, denoiser, measure = ragged_rows(), inconsistent_denoiser(6), estimator(masking=masking)
    # Padding of a width of its own for each row: 0 to 3 columns.
    padding = torch.arange(len(rows.row_keys))[:, None] % 4
    rows = replace(rows, attention_mask=torch.arange(rows.token_ids.shape[1]) >= padding)
    corruption = measure.corrupt(rows, update=None)
    found = measure(denoiser, rows, corruption, vocabulary=VOCABULARY)
    ((token_ids, attended, keep),) = denoiser.calls
    assert attended is not None
    assert keep is not None
    for row in range(len(rows.row_keys)):
        for draw in range(measure.draws):
            view, masked = token_ids[measure.draws * row + draw], corruption.masked[row, draw]
            assert (view[masked] == MASK).all()
            assert torch.equal(view[~masked], rows.token_ids[row][~masked])
            assert torch.equal(attended[measure.draws * row + draw], rows.attention_mask[row])
            assert torch.equal(keep[measure.draws * row + draw, -6:], masked[-6:])
            assert torch.equal(found.scored[row, draw], masked[-6:])
    assert keep.dtype == torch.bool
    assert not keep[:, :-6].any()


def test_prompt_tokens_and_positions_after_the_end_are_never_scored_even_if_masked() -> None:
    rows, denoiser, measure = ragged_rows(), inconsistent_denoiser(6), estimator()
    corruption = measure.corrupt(rows, update=None)
    everything = Corruption(masked=torch.ones_like(corruption.masked), weight=torch.ones_like(corruption.weight))
    found = measure(denoiser, rows, everything, vocabulary=VOCABULARY)
    assert torch.equal(found.scored, rows.completion_mask[:, None].expand_as(found.scored))
    assert (found.token_log_probs[~found.scored] == 0).all()
    keep = denoiser.calls[0][2]
    assert keep is not None
    assert int(keep.sum()) == 2 * int(rows.lengths.sum())


def naive_log_probs(table: Tensor, rows: Sequences, corruption_masked: Tensor) -> Tensor:
    """(N, K, C) log-probabilities of all tokens from logits at all positions, one view at a time."""
    found = []
    for row in range(len(rows.row_keys)):
        for draw in range(corruption_masked.shape[1]):
            view = rows.token_ids[row].clone()
            view[corruption_masked[row, draw]] = MASK
            logits = TableDenoiser(table)(view[None])[0]
            targets = rows.token_ids[row, -logits.shape[0] :].clamp_max(TOKENS - 1)
            found.append(logits.log_softmax(dim=-1).gather(1, targets[:, None])[:, 0])
    return torch.stack(found).unflatten(0, corruption_masked.shape[:2])


@pytest.mark.parametrize("reduction", ["sum", "length_normalized"])
@every_law_by_share
def test_gradients_are_those_of_full_logits(masking: str, reduction: str) -> None:
    rows, measure = ragged_rows(), estimator(masking=masking, reduction=reduction)
    corruption = measure.corrupt(rows, update=None)
    table = inconsistent_denoiser(6).table.requires_grad_()
    found = measure(TableDenoiser(table), rows, corruption, vocabulary=VOCABULARY)
    assert found.eubo is not None
    shares = torch.linspace(-1, 1, len(rows.row_keys))
    (gradient,) = torch.autograd.grad((shares * (found.elbo - 2 * found.eubo)).sum(), table)

    scored = corruption.masked[:, :, -6:]
    log_probs = naive_log_probs(table, rows, corruption.masked).double()
    lower = (log_probs * scored).sum(2) / scored.sum(2)
    share = scored.sum(2, keepdim=True) / rows.lengths[:, None, None].double()
    moment = (scored * (1.5 * log_probs).exp() / share).mean(dim=1)
    upper = torch.stack([row[row > 0].log().mean() / 1.5 for row in moment])
    scale = rows.lengths if reduction == "sum" else 1
    torch.testing.assert_close(found.elbo.double(), lower.mean(1) * scale, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.eubo.double(), upper * scale, atol=1e-5, rtol=1e-5)
    (expected,) = torch.autograd.grad((shares * scale * (lower.mean(1) - 2 * upper)).sum(), table)
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-5)


@every_law
def test_an_end_token_in_first_position_is_one_scored_token(masking: str) -> None:
    rows = make_rows(torch.ones(4, dtype=torch.int64), 6, ids=torch.full((4, 6), 2))
    table = inconsistent_denoiser(6).table.requires_grad_()
    denoiser = TableDenoiser(table)
    token = torch.full((4,), denoiser.log_prob([MASK] * 6, 0, 2))
    for reduction in ("sum", "length_normalized"):
        measure = estimator(masking=masking, reduction=reduction)
        found = estimate(measure, denoiser, rows)
        assert found.scored[:, :, 0].any(dim=1).all()
        assert not found.scored[:, :, 1:].any()
        assert found.eubo is not None
        total = measure.corrupt(rows, update=None).weight[:, :, 0].mean(dim=1)
        torch.testing.assert_close(found.elbo, token * total)
        if masking != "coupled":  # whose weight is 1 / t, whichever view masks the token
            torch.testing.assert_close(total, torch.ones(4))
            torch.testing.assert_close(found.eubo, token)
        (gradient,) = torch.autograd.grad((found.elbo + found.eubo).sum(), table)
        assert gradient.isfinite().all()


@every_law
def test_shared_masks_are_the_same_for_the_old_and_every_current_estimate(masking: str) -> None:
    rows, denoiser = ragged_rows(), inconsistent_denoiser(6)
    measure = estimator(masking=masking, share_masks=True)
    old = estimate(measure, denoiser, rows)
    for update in (0, 1, 5):
        assert torch.equal(estimate(measure, denoiser, rows, update).elbo, old.elbo)


@every_law
def test_masks_that_are_not_shared_differ_between_the_old_and_every_current_estimate(masking: str) -> None:
    lengths = torch.full((100,), 60)
    rows, measure = make_rows(lengths, 60), estimator(masking=masking, block_size=32)
    masks = [measure.corrupt(rows, update=update).masked for update in (None, 0, 1, 2)]
    for later in range(4):
        assert torch.equal(measure.corrupt(rows, update=[None, 0, 1, 2][later]).masked, masks[later])
        for earlier in range(later):
            assert (masks[later] != masks[earlier]).flatten(1).any(dim=1).double().mean() > 0.95


@every_law
def test_estimates_do_not_depend_on_batch_padding_or_micro_batches(masking: str) -> None:
    denoiser, measure = inconsistent_denoiser(6), estimator(masking=masking)
    whole = estimate(measure, denoiser, ragged_rows())
    padded = estimate(measure, denoiser, ragged_rows(padding=4))
    assert torch.equal(whole.elbo, padded.elbo)
    parts = [estimate(measure, denoiser, ragged_rows().select(slice(i, i + 4))) for i in (0, 4, 8)]
    joined = LikelihoodEstimate.cat(parts)
    torch.testing.assert_close(joined.elbo, whole.elbo)
    assert torch.equal(joined.scored, whole.scored)


@pytest.mark.parametrize("default", [torch.float32, torch.bfloat16])
def test_arithmetic_is_float32_for_bf16_logits_and_whatever_the_default_dtype(default: torch.dtype) -> None:
    rows, measure = ragged_rows(), estimator(keep_logits=True)
    table = inconsistent_denoiser(6).table.bfloat16()
    expected = estimate(measure, TableDenoiser(table.double()), rows)
    torch.set_default_dtype(default)
    try:
        found = estimate(measure, TableDenoiser(table), rows)
    finally:
        torch.set_default_dtype(torch.float32)
    for name in ("elbo", "eubo", "token_log_probs", "logits"):
        value = getattr(found, name)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, getattr(expected, name), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("keep_logits", [True, False])
@pytest.mark.parametrize("beta", [None, 1.5])
def test_estimates_hold_what_provides_says(beta: float | None, keep_logits: bool) -> None:
    measure = estimator(eubo_beta=beta, keep_logits=keep_logits)
    found = estimate(measure, inconsistent_denoiser(6), ragged_rows())
    held = {name for name in ("elbo", "eubo", "token_log_probs", "logits") if getattr(found, name) is not None}
    assert measure.provides == held


def test_kept_logits_are_those_of_the_scored_tokens_in_row_major_order() -> None:
    rows = ragged_rows()
    found = estimate(estimator(keep_logits=True), inconsistent_denoiser(6), rows)
    assert found.logits is not None
    targets = rows.completion_ids[:, None].expand_as(found.scored)[found.scored]
    chosen = found.logits.log_softmax(dim=-1)[torch.arange(len(targets)), targets]
    torch.testing.assert_close(chosen, found.token_log_probs[found.scored])


def test_an_impossible_token_is_not_hidden() -> None:
    table = inconsistent_denoiser(3).table
    table[:, 1, 0] = -torch.inf
    found = estimate(estimator(masking="complementary"), TableDenoiser(table), completion_rows([1, 0, 2], rows=5))
    assert found.eubo is not None
    assert (found.elbo == -torch.inf).all()
    assert (found.eubo == -torch.inf).all()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"draws": 0}, "draws 0"),
        ({"draws": -2}, "draws -2"),
        ({"draws": 3, "masking": "complementary"}, "draws 3 .* even for complementary"),
        ({"draws": 1, "masking": "antithetic"}, "draws 1 .* even for antithetic"),
        ({"draws": 1, "masking": "coupled"}, "draws 1 .* odd and at least 3 for coupled"),
        ({"draws": 2, "masking": "coupled"}, "draws 2 .* odd and at least 3 for coupled"),
        ({"draws": 0, "masking": "quadrature"}, "draws 0"),
        ({"masking": "blockwise"}, "'blockwise' .* block_random, .*, antithetic, quadrature, coupled"),
        ({"reduction": "mean"}, "'mean' .* length_normalized, sum"),
        ({"eubo_beta": 0.5}, "eubo_beta 0.5"),
        ({"eubo_beta": float("nan")}, "eubo_beta nan"),
        ({"eubo_beta": float("inf")}, "eubo_beta inf"),
        ({"block_size": 0}, "block_size 0"),
    ],
)
def test_settings_out_of_range_are_refused_by_name_and_value(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserInputError, match=told) as refusal:
        MonteCarloElbo(**settings)
    assert "\n" not in str(refusal.value)
