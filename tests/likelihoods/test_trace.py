"""With masks by trace a token's share of the bound is the log-probability that the sampler saw when it decided it."""

from typing import Any

import pytest
import torch
from tests.likelihoods.block_rows import block_policy
from torch import Tensor

from stabledrl.backbones import NewPolicy, Policy
from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo, StaircaseElbo
from stabledrl.protocols import LikelihoodEstimator, Sampler
from stabledrl.samplers import BlockDiffusionSampler, SemiAutoregressiveSampler
from stabledrl.types import Sequences

PROMPT_LENGTHS = [9, 9, 6, 4, 1, 7, 8, 9, 3, 5]
LENGTH, SIZE = 12, 4


def prompts() -> tuple[Tensor, Tensor]:
    width = max(PROMPT_LENGTHS)
    mask = torch.arange(width) >= width - torch.tensor(PROMPT_LENGTHS)[:, None]
    ids = torch.randint(2, 28, mask.shape, generator=torch.Generator().manual_seed(1))
    return ids.masked_fill(~mask, 0), mask


def sampled(policy: Policy, sampler: Sampler) -> Sequences:
    ids, mask = prompts()
    keys = torch.arange(len(ids)) * 13
    completions = sampler(policy, ids, mask, vocabulary=policy.vocabulary, row_keys=keys, temperature=1.0)
    return Sequences.join(ids, mask, completions, keys)


def estimated(policy: Policy, rows: Sequences, likelihood: LikelihoodEstimator) -> Any:
    return likelihood(policy, rows, likelihood.corrupt(rows, update=None), vocabulary=policy.vocabulary)


def in_its_state(policy: Policy, rows: Sequences, row: int, place: int, block_size: int | None) -> float:
    """One token's log-probability in the state it was decided in, by one plain pass over the row without padding."""
    assert rows.step_map is not None
    real = rows.attention_mask[row]
    tokens, steps = rows.token_ids[row][real].clone(), rows.step_map[row]
    prompt = int(real[: rows.prompt_length].sum())
    later = (steps >= steps[place]) | (steps < 0)
    tokens[prompt:][later] = policy.vocabulary.mask_token_id
    if block_size is not None:
        end = ((prompt + place) // block_size + 1) * block_size
        tokens = torch.nn.functional.pad(tokens, (0, block_size), value=policy.vocabulary.mask_token_id)[:end]
    log_probs = policy.logits(tokens[None])[0, prompt + place].log_softmax(dim=-1)
    return float(log_probs[rows.completion_ids[row, place]])


def expected_shares(policy: Policy, rows: Sequences, block_size: int | None) -> Tensor:
    shares = torch.zeros(rows.completion_mask.shape)
    for row, place in rows.completion_mask.nonzero().tolist():
        shares[row, place] = in_its_state(policy, rows, row, place, block_size)
    return shares


BLOCK_SAMPLERS = [
    BlockDiffusionSampler(LENGTH, SIZE, LENGTH),
    BlockDiffusionSampler(LENGTH, SIZE, LENGTH // 2, "random"),
    BlockDiffusionSampler(LENGTH, SIZE, LENGTH, "dynamic", threshold=0.2),
]


@pytest.mark.parametrize("sampler", BLOCK_SAMPLERS, ids=["each_its_step", "two_a_step", "dynamic"])
@torch.no_grad()
def test_a_block_models_shares_are_those_of_the_states_the_tokens_were_decided_in(sampler: Any) -> None:
    policy = block_policy(SIZE)
    rows = sampled(policy, sampler)
    found = estimated(policy, rows, StaircaseElbo(block_size=SIZE, draws=SIZE, masking="trace")).token_elbo
    torch.testing.assert_close(found, expected_shares(policy, rows, SIZE), atol=1e-5, rtol=1e-5)
    other = estimated(policy, rows, StaircaseElbo(block_size=SIZE, draws=SIZE, share_masks=True)).token_elbo
    assert (other - found).abs().max() > 0.1


@torch.no_grad()
def test_the_dynamic_rows_took_different_numbers_of_steps() -> None:
    steps = sampled(block_policy(SIZE), BLOCK_SAMPLERS[2]).step_map
    assert steps is not None
    assert len({len(set(row.tolist())) for row in steps}) > 1


@pytest.mark.parametrize("size", [LENGTH, SIZE])
@torch.no_grad()
def test_a_full_attention_models_shares_are_those_of_its_states_in_one_block_or_several(size: int) -> None:
    shape = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "initializer_range": 0.3}
    policy = NewPolicy(**shape).build()  # type: ignore[arg-type]
    rows = sampled(policy, SemiAutoregressiveSampler(LENGTH, size, LENGTH))
    found = estimated(policy, rows, MonteCarloElbo(draws=LENGTH, masking="trace")).token_elbo
    torch.testing.assert_close(found, expected_shares(policy, rows, None), atol=1e-5, rtol=1e-5)
    other = estimated(policy, rows, MonteCarloElbo(draws=LENGTH, masking="stratified")).token_elbo
    assert (other - found).abs().max() > 0.1


class Listening:
    """The policy, with every request's logits."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.logits: list[Tensor] = []

    def __call__(self, *arguments: Any, **options: Any) -> Tensor:
        self.logits.append(self.policy(*arguments, **options))
        return self.logits[-1]


@torch.no_grad()
def test_shares_are_the_log_probabilities_that_the_sampler_itself_read() -> None:
    policy = block_policy(SIZE)
    ids = torch.randint(2, 28, (1, 2 * SIZE), generator=torch.Generator().manual_seed(5))
    mask, key = torch.ones_like(ids, dtype=torch.bool), torch.tensor([3])
    for seed in range(20):
        forward = Listening(policy)
        sampler = BlockDiffusionSampler(LENGTH, SIZE, LENGTH, use_cache=False)
        completions = sampler(forward, ids, mask, vocabulary=policy.vocabulary, row_keys=key + seed, temperature=1.0)
        if not completions.completion_mask.all():
            continue  # What lies behind an end token is not kept, so neither are all states.
        rows = Sequences.join(ids, mask, completions, key)
        found = estimated(policy, rows, StaircaseElbo(block_size=SIZE, draws=SIZE, masking="trace")).token_elbo[0]
        # A request holds the masked places of a block from left to right.
        steps = completions.step_map[0].tolist()
        for place, step in enumerate(steps):
            block = range(place // SIZE * SIZE, place // SIZE * SIZE + SIZE)
            undecided = [at for at in block if steps[at] >= step]
            logits = forward.logits[step][undecided.index(place)]
            seen = logits.log_softmax(dim=-1)[completions.token_ids[0, place]]
            assert float(found[place]) == pytest.approx(float(seen), abs=1e-5)
        return
    pytest.fail("no completion without an end token")


@pytest.mark.parametrize(
    ("likelihood", "without"),
    [
        (StaircaseElbo(masking="trace"), StaircaseElbo()),
        (MonteCarloElbo(masking="trace"), MonteCarloElbo(masking="uniform")),
    ],
    ids=["staircase", "full_attention"],
)
def test_trace_needs_the_steps_shares_its_masks_and_estimates_no_elbo(likelihood: Any, without: Any) -> None:
    assert likelihood.needs == {"step_map"}
    assert "shared_masks" in likelihood.provides
    assert not likelihood.unbiased
    assert without.needs == frozenset()
    assert "shared_masks" not in without.provides
    assert without.unbiased


@torch.no_grad()
def test_every_update_sees_the_masks_of_the_old_estimate() -> None:
    rows = sampled(block_policy(SIZE), BLOCK_SAMPLERS[0])
    for likelihood in (StaircaseElbo(block_size=SIZE, masking="trace"), MonteCarloElbo(masking="trace")):
        old = likelihood.corrupt(rows, update=None)
        for update in (0, 1):
            assert torch.equal(likelihood.corrupt(rows, update=update).masked, old.masked)


@torch.no_grad()
def test_both_bounds_are_the_mean_of_the_tokens_log_probabilities() -> None:
    policy = block_policy(SIZE)
    rows = sampled(policy, BLOCK_SAMPLERS[0])
    found = estimated(policy, rows, StaircaseElbo(block_size=SIZE, draws=3, masking="trace"))
    mean = found.token_log_probs.sum(dim=(1, 2)) / rows.lengths
    torch.testing.assert_close(found.elbo, mean)
    torch.testing.assert_close(found.eubo, mean)


def test_an_unknown_masking_is_refused() -> None:
    unknown: Any = "uniform"
    with pytest.raises(UserInputError, match="masking 'uniform' is unknown; use one of block_stratified, trace"):
        StaircaseElbo(masking=unknown)
