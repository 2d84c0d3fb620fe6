from itertools import combinations
from math import comb
from typing import Any

import pytest
import torch
from tests.likelihoods.block_rows import LENGTHS, PROMPT, PROMPT_LENGTHS, block_policy, block_rows, looped_elbo

from stabledrl.backbones import Policy
from stabledrl.errors import UserInputError
from stabledrl.likelihoods import StaircaseElbo
from stabledrl.types import LikelihoodEstimate, Sequences

BLOCKS, DRAWS = [3, 4, 8], [1, 2, 4]


def estimate(policy: Policy, rows: Sequences, **settings: Any) -> LikelihoodEstimate:
    measure = StaircaseElbo(**{"block_size": policy.block_size, "reduction": "sum", **settings})
    return measure(policy, rows, measure.corrupt(rows, update=None), vocabulary=policy.vocabulary)


def gradient(policy: Policy, value: torch.Tensor) -> torch.Tensor:
    shares = torch.linspace(-1, 2, len(value))
    found = torch.autograd.grad((shares * value).sum(), list(policy.parameters()))
    return torch.cat([part.flatten() for part in found])


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("block_size", BLOCKS)
def test_one_pass_equals_the_loop_over_blocks_in_value_and_gradient(block_size: int, draws: int) -> None:
    policy = block_policy(block_size)
    rows = block_rows(policy)
    assert any(length % block_size for length in PROMPT_LENGTHS)
    corruption = StaircaseElbo(block_size=block_size, draws=draws).corrupt(rows, update=None)
    found = estimate(policy, rows, draws=draws).elbo
    expected = looped_elbo(policy, rows, corruption)
    assert found.std() > 1
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-5)
    ours, theirs = gradient(policy, found), gradient(policy, expected)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-4


@pytest.mark.parametrize("block_size", BLOCKS)
def test_neither_padding_nor_columns_after_the_end_nor_the_other_rows_matter(block_size: int) -> None:
    policy = block_policy(block_size)
    rows = block_rows(policy)
    expected = estimate(policy, rows)
    for changed in (block_rows(policy, padding=3), block_rows(policy, extra=5), block_rows(policy, padding=8, extra=2)):
        torch.testing.assert_close(estimate(policy, changed).elbo, expected.elbo, atol=1e-4, rtol=1e-5)
    parts = LikelihoodEstimate.cat([estimate(policy, rows.select(slice(i, i + 1))) for i in range(len(LENGTHS))])
    torch.testing.assert_close(parts.elbo, expected.elbo, atol=1e-4, rtol=1e-5)
    assert torch.equal(parts.scored, expected.scored)


@pytest.mark.parametrize("block_size", [3, 4])
def test_no_noised_token_sees_clean_tokens_of_its_own_or_a_later_block(block_size: int) -> None:
    policy = block_policy(block_size)
    rows = block_rows(policy).select(torch.tensor([0]))
    inputs: dict[str, Any] = {}

    def recording(**arguments: Any) -> torch.Tensor:
        inputs.update(arguments)
        return policy(**arguments)

    measure = StaircaseElbo(block_size=block_size, draws=2)
    with torch.no_grad():
        measure(recording, rows, measure.corrupt(rows, update=None), vocabulary=policy.vocabulary)  # type: ignore[arg-type]
        token_ids, positions = inputs.pop("token_ids"), inputs["position_ids"][0]
        clean = int((positions.diff() <= 0).nonzero()[0]) + 1
        blocks = positions // block_size
        inputs["keep"] = inputs["targets"] = None
        before = policy(token_ids, **inputs)[0, clean:]
        for block in range(int(blocks[:clean].max()) + 1):
            changed = token_ids.clone()
            inside = torch.arange(len(positions)).lt(clean) & (blocks == block)
            changed[0, inside] = (changed[0, inside] + 1) % 20 + 2
            moved = (policy(changed, **inputs)[0, clean:] - before).abs().amax(dim=1)
            assert (moved[blocks[clean:] <= block] == 0).all()
            assert (moved[blocks[clean:] > block] > 1e-4).all()


def exact_block_elbo(policy: Policy, tokens: torch.Tensor, prompt: int) -> float:
    """Expectation over k ~ U{1..n} and the set of k tokens, block by block, by enumeration of all sets."""
    size, total = policy.block_size, 0.0
    assert size is not None
    for start in range(prompt // size * size, len(tokens), size):
        places = list(range(max(start, prompt), min(start + size, len(tokens))))
        for count in range(1, len(places) + 1):
            for chosen in map(list, combinations(places, count)):
                view = torch.full((start + size,), policy.vocabulary.mask_token_id)
                view[: len(tokens[: start + size])] = tokens[: start + size]
                view[chosen] = policy.vocabulary.mask_token_id
                log_probs = policy.logits(view[None])[0].log_softmax(dim=-1)[chosen, tokens[chosen]].sum()
                total += float(log_probs) * len(places) / count / len(places) / comb(len(places), count)
    return total


@pytest.mark.parametrize("draws", [1, 2])
@torch.no_grad()
def test_expectation_is_the_block_diffusion_elbo(draws: int) -> None:
    policy = block_policy(4)
    assert StaircaseElbo().unbiased
    row = block_rows(policy).select(torch.tensor([1]))  # 9 prompt tokens, 5 scored: blocks of 3 and 2 tokens
    tokens = row.token_ids[0][row.attention_mask[0]][: 9 + 5]
    many = row.select(torch.zeros(12000, dtype=torch.int64))
    many = Sequences(**{**vars(many), "row_keys": torch.arange(12000) * 7919})
    found = estimate(policy, many, draws=draws).elbo.double()
    bound = 4 * float(found.std()) / len(found) ** 0.5
    assert bound < 0.3
    assert abs(float(found.mean()) - exact_block_elbo(policy, tokens, 9)) < bound


def test_eubo_uses_each_blocks_own_share_of_masked_tokens() -> None:
    policy = block_policy(4)
    rows = block_rows(policy)
    measure = StaircaseElbo(block_size=4, draws=3, eubo_beta=1.5, reduction="sum")
    corruption = measure.corrupt(rows, update=None)
    found = measure(policy, rows, corruption, vocabulary=policy.vocabulary)
    assert found.eubo is not None
    for row, (prompt, length) in enumerate(zip(PROMPT_LENGTHS, LENGTHS)):
        terms = []
        for place in range(length):
            block = (prompt + place) // 4
            mates = [other for other in range(length) if (prompt + other) // 4 == block]
            moment = torch.zeros(())
            for draw in range(3):
                if found.scored[row, draw, place]:
                    share = float(found.scored[row, draw, mates].sum()) / len(mates)
                    moment = moment + (1.5 * found.token_log_probs[row, draw, place]).exp() / share
            if moment > 0:
                terms.append((moment / 3).log() / 1.5)
        torch.testing.assert_close(found.eubo[row], torch.stack(terms).mean() * length, atol=1e-4, rtol=1e-4)


def test_reductions_share_masks_and_provided_fields() -> None:
    policy = block_policy(4)
    rows = block_rows(policy)
    whole, mean = estimate(policy, rows, eubo_beta=None), estimate(policy, rows, reduction="length_normalized")
    torch.testing.assert_close(mean.elbo, whole.elbo / rows.lengths)
    assert whole.eubo is None
    bare = StaircaseElbo(eubo_beta=None, keep_logits=True, reduction="sum")
    assert bare.provides == {"elbo", "token_log_probs", "logits"}
    kept = estimate(policy, rows, keep_logits=True)
    assert kept.logits is not None
    assert len(kept.logits) == int(kept.scored.sum())
    shared, fresh = StaircaseElbo(share_masks=True), StaircaseElbo()
    old = shared.corrupt(rows, update=None)
    assert torch.equal(shared.corrupt(rows, update=1).masked, old.masked)
    views = [fresh.corrupt(rows, update=update).masked for update in (None, 0, 1)]
    assert not any(torch.equal(first, second) for first, second in combinations(views, 2))


def test_positions_are_scored_where_masked_and_prompts_never() -> None:
    policy = block_policy(4)
    rows = block_rows(policy)
    corruption = StaircaseElbo().corrupt(rows, update=None)
    assert not corruption.masked[:, :, :PROMPT].any()
    assert torch.equal(estimate(policy, rows).scored, corruption.masked[:, :, PROMPT:])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"block_size": 0}, "block_size 0 "),
        ({"block_size": 2.5}, "block_size 2.5 "),
        ({"draws": 0}, "draws 0 "),
        ({"reduction": "mean"}, "'mean' .* length_normalized, sum"),
        ({"eubo_beta": 0.5}, "eubo_beta 0.5"),
        ({"eubo_beta": float("nan")}, "eubo_beta nan"),
    ],
)
def test_settings_out_of_range_are_refused_by_name_and_value(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserInputError, match=told) as refusal:
        StaircaseElbo(**settings)
    assert "\n" not in str(refusal.value)
