from typing import Any

import pytest
import torch
from tests.diffusion.laws import MASK, make_rows
from tests.likelihoods.joint import VOCABULARY, inconsistent_denoiser, ragged_rows

from stabledrl.backbones import NewPolicy
from stabledrl.diffusion import check_attention
from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MeanField
from stabledrl.types import LikelihoodEstimate, Sequences


def tiny_policy() -> Any:
    return NewPolicy(hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64, initializer_range=0.3).build()


def policy_rows(policy: Any, *, padding: int = 0) -> Sequences:
    """Four rows of prompts of their own lengths, in the policy's vocabulary."""
    rows, prompt, width = 4, 7, 5
    ids = torch.randint(2, 28, (rows, prompt + width), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([torch.zeros(rows, padding, dtype=torch.int64), ids], dim=1)
    real = torch.arange(padding + prompt) >= padding + torch.tensor([0, 2, 5, 1])[:, None]
    scored = torch.arange(width) < torch.tensor([5, 1, 3, 4])[:, None]
    ids[:, : padding + prompt][~real] = policy.vocabulary.pad_token_id
    ids[:, padding + prompt :][~scored] = policy.vocabulary.mask_token_id
    return Sequences(
        token_ids=ids,
        attention_mask=torch.cat([real, torch.ones_like(scored)], dim=1),
        completion_mask=scored,
        row_keys=torch.arange(rows) * 7919,
    )


def estimate(policy: Any, rows: Sequences, *, update: int | None = None, **settings: Any) -> LikelihoodEstimate:
    measure = MeanField(**settings)
    return measure(policy, rows, measure.corrupt(rows, update=update), vocabulary=policy.vocabulary)


@pytest.mark.parametrize("draws", [1, 3])
def test_token_log_probs_are_those_of_a_direct_pass_over_the_masked_completion(draws: int) -> None:
    policy, measure = tiny_policy(), MeanField(draws=draws, prompt_mask_rate=0.4, reduction="sum")
    rows = policy_rows(policy)
    masked = measure.corrupt(rows, update=None).masked
    found = estimate(policy, rows, draws=draws, prompt_mask_rate=0.4, reduction="sum")
    assert masked[:, :, :7].any()
    for row in range(4):
        length, real = int(rows.lengths[row]), rows.attention_mask[row]
        by_draw = []
        for draw in range(draws):
            view = rows.token_ids[row].clone()
            view[:7][masked[row, draw, :7]] = policy.vocabulary.mask_token_id
            view[7:] = policy.vocabulary.mask_token_id
            log_probs = policy.logits(view[real][None])[0, -5:].log_softmax(dim=-1)
            by_draw.append(log_probs[range(length), rows.completion_ids[row, :length]])
            torch.testing.assert_close(found.token_log_probs[row, draw, :length], by_draw[-1], atol=1e-4, rtol=1e-4)
        mean = torch.stack(by_draw).mean(dim=0)
        torch.testing.assert_close(found.token_elbo[row, :length], mean, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found.elbo[row], mean.sum(), atol=1e-4, rtol=1e-4)
        assert not found.token_elbo[row, length:].any()
        assert not found.scored[row, :, length:].any()


def test_every_token_is_scored_and_length_normalised_is_the_mean() -> None:
    policy = tiny_policy()
    rows = policy_rows(policy)
    whole, mean = estimate(policy, rows, reduction="sum"), estimate(policy, rows)
    assert torch.equal(whole.scored[:, 0], rows.completion_mask)
    torch.testing.assert_close(mean.elbo, whole.elbo / rows.lengths)
    torch.testing.assert_close(whole.token_elbo.sum(dim=1), whole.elbo)
    assert whole.eubo is None


def test_it_is_a_proxy_and_says_so() -> None:
    """With a clean prompt it is a constant, which a denoiser's ELBO is not: the ELBO sees partly masked views too."""
    assert MeanField.unbiased is False
    rows, denoiser = ragged_rows(), inconsistent_denoiser(6)
    measure = MeanField(prompt_mask_rate=0.0, reduction="sum")
    found = measure(denoiser, rows, measure.corrupt(rows, update=None), vocabulary=VOCABULARY)
    for row, length in enumerate(rows.lengths.tolist()):
        expected = sum(denoiser.log_prob([MASK] * 6, k, int(rows.completion_ids[row, k])) for k in range(length))
        assert found.elbo[row].item() == pytest.approx(expected, rel=1e-5)


def test_a_share_of_the_prompt_is_masked_and_padding_never_is() -> None:
    rows = make_rows(torch.full((200,), 3), 3, prompt=50, padding=20)
    masked = MeanField().corrupt(rows, update=None).masked[:, 0]
    assert not masked[:, :20].any()
    assert masked[:, 20:70].double().mean().item() == pytest.approx(0.15, abs=0.015)


def test_old_and_current_estimate_share_their_masks_unless_told_otherwise() -> None:
    policy, rows = tiny_policy(), make_rows(torch.full((50,), 3), 3, prompt=60)
    shared, fresh = MeanField(), MeanField(share_masks=False)
    masks = [shared.corrupt(rows, update=update).masked for update in (None, 0, 1, 5)]
    assert all(torch.equal(mask, masks[0]) for mask in masks)
    own = [fresh.corrupt(rows, update=update).masked for update in (None, 0, 1, 5)]
    assert len(torch.cat(own).flatten(1).unique(dim=0)) == 4 * 50
    small = policy_rows(policy)
    assert torch.equal(estimate(policy, small).token_elbo, estimate(policy, small, update=3).token_elbo)


def test_neither_padding_nor_the_other_rows_matter() -> None:
    policy = tiny_policy()
    whole = estimate(policy, policy_rows(policy))
    torch.testing.assert_close(estimate(policy, policy_rows(policy, padding=6)).elbo, whole.elbo, atol=1e-5, rtol=1e-5)
    parts = [estimate(policy, policy_rows(policy).select(slice(i, i + 1))) for i in range(4)]
    torch.testing.assert_close(LikelihoodEstimate.cat(parts).elbo, whole.elbo, atol=1e-5, rtol=1e-5)


def test_provides_what_its_estimates_hold() -> None:
    assert MeanField().provides == {"elbo", "token_log_probs", "shared_masks", "length_normalized"}
    bare = MeanField(share_masks=False, reduction="sum", keep_logits=True)
    assert bare.provides == {"elbo", "token_log_probs", "logits"}
    policy = tiny_policy()
    rows = policy_rows(policy)
    kept = estimate(policy, rows, keep_logits=True)
    assert kept.logits is not None
    assert len(kept.logits) == int(rows.lengths.sum())


def test_block_causal_policies_are_refused() -> None:
    check_attention(None, MeanField())
    with pytest.raises(UserInputError, match="MeanField is made for full attention"):
        check_attention(4, MeanField())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"draws": 0}, "draws 0"),
        ({"draws": 2, "prompt_mask_rate": 0.0}, "draws 2 are all the same"),
        ({"prompt_mask_rate": 1.0}, "prompt_mask_rate 1.0"),
        ({"prompt_mask_rate": -0.1}, "prompt_mask_rate -0.1"),
        ({"prompt_mask_rate": float("nan")}, "prompt_mask_rate nan"),
        ({"reduction": "mean"}, "'mean' .* length_normalized, sum"),
    ],
)
def test_settings_out_of_range_are_refused_by_name_and_value(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserInputError, match=told) as refusal:
        MeanField(**settings)
    assert "\n" not in str(refusal.value)
