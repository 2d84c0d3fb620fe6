"""What is planned for is what samplers and estimators ask of a policy."""

from typing import Any

import pytest
import torch
from tests.training import tiny_policy
from torch import Tensor

from stabledrl.backbones import Policy
from stabledrl.likelihoods import MeanField, MonteCarloElbo, StaircaseElbo
from stabledrl.planning import measure_load
from stabledrl.protocols import LikelihoodEstimator, Sampler
from stabledrl.randomness import row_keys
from stabledrl.samplers import BlockDiffusionSampler, SemiAutoregressiveSampler
from stabledrl.types import Sequences

PROMPT, LENGTH, BLOCK = 10, 16, 4
FULL, BLOCKS = SemiAutoregressiveSampler(LENGTH, BLOCK, LENGTH), BlockDiffusionSampler(LENGTH, BLOCK, LENGTH)


def measured(sampler: Sampler, estimator: LikelihoodEstimator, **options: Any) -> Any:
    settings: dict[str, Any] = {"rollout_rows": 12, "micro_batches": 3, "rows_per_forward": None, **options}
    return measure_load(sampler, estimator, prompt_length=PROMPT, **settings)


class Counted:
    """A policy that counts the positions and log-probabilities asked of it."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.tokens, self.chosen = policy, 0, 0
        self.new_cache = policy.new_cache

    def __call__(self, token_ids: Tensor, *arguments: Any, **options: Any) -> Tensor:
        result = self.policy(token_ids, *arguments, **options)
        self.tokens = max(self.tokens, token_ids.numel())
        self.chosen = max(self.chosen, result.numel() if "targets" in options else result[..., 0].numel())
        return result


@pytest.mark.parametrize(
    ("sampler", "estimator", "block_size"),
    [
        (FULL, MonteCarloElbo(draws=2, block_size=BLOCK), None),
        (FULL, MonteCarloElbo(draws=3, masking="coupled", keep_logits=True), None),
        (FULL, MeanField(), None),
        (BLOCKS, StaircaseElbo(block_size=BLOCK), BLOCK),
        (BLOCKS, StaircaseElbo(block_size=BLOCK, masking="trace", draws=4, eubo_beta=None), BLOCK),
        (BlockDiffusionSampler(LENGTH, BLOCK, LENGTH, use_cache=False), StaircaseElbo(block_size=BLOCK), BLOCK),
    ],
    ids=["elbo", "logits", "mean field", "staircase", "trace", "no cache"],
)
@torch.no_grad()
def test_a_real_policy_is_asked_for_no_more(sampler: Any, estimator: Any, block_size: int | None) -> None:
    load, policy = measured(sampler, estimator), Counted(tiny_policy(block_size=block_size))
    prompt = torch.full((1, PROMPT), 5)
    completions = sampler(
        policy,
        prompt,
        torch.ones_like(prompt, dtype=torch.bool),
        vocabulary=policy.policy.vocabulary,
        row_keys=row_keys(0, 0, torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)),
        temperature=1.0,
    )
    assert policy.tokens <= load.sampling.tokens
    assert policy.chosen <= max(load.sampling.logits, 1)
    whole = torch.ones(1, LENGTH, dtype=torch.bool)
    keys = torch.arange(1)
    ids = torch.cat([prompt, completions.token_ids], dim=1)
    steps = torch.arange(LENGTH)[None]
    mask = torch.ones_like(ids, dtype=torch.bool)
    sequences = Sequences(token_ids=ids, attention_mask=mask, completion_mask=whole, row_keys=keys, step_map=steps)
    scoring = Counted(policy.policy)
    estimate = estimator(
        scoring, sequences, estimator.corrupt(sequences, update=None), vocabulary=policy.policy.vocabulary
    )
    assert scoring.tokens == load.scoring.tokens
    assert bool(load.scoring.logits) == (estimate.logits is not None)


def test_sizes_of_full_attention() -> None:
    load = measured(FULL, MonteCarloElbo(draws=2, block_size=BLOCK))
    assert (load.sampling.tokens, load.sampling.logits, load.sampling.cached) == (PROMPT + LENGTH, BLOCK, 0)
    assert (load.scoring.tokens, load.scoring.logits) == (2 * (PROMPT + LENGTH), 0)
    assert load.sampling_rows == load.scoring_rows == 12
    assert load.update_rows == 4


def test_sizes_of_blocks() -> None:
    load = measured(BLOCKS, StaircaseElbo(block_size=BLOCK, draws=2))
    # 10 prompt tokens are two whole blocks and half of the first of five response blocks; the last is not in the cache.
    assert load.sampling.cached == 7 * BLOCK
    assert load.scoring.tokens == (2 + 4) * BLOCK + 2 * 5 * BLOCK
    assert load.scoring.mask == load.scoring.tokens**2


def test_fewer_rows_per_forward_and_larger_evaluations() -> None:
    load = measured(FULL, MonteCarloElbo(block_size=BLOCK), rows_per_forward=5)
    assert (load.sampling_rows, load.scoring_rows, load.update_rows) == (5, 5, 4)
    load = measured(FULL, MonteCarloElbo(block_size=BLOCK), rows_per_forward=5, evaluation_rows=9)
    assert (load.sampling_rows, load.scoring_rows) == (9, 5)


def test_most_scored_tokens_are_between_the_mean_and_all() -> None:
    load = measured(FULL, MonteCarloElbo(draws=2, masking="uniform"), rollout_rows=64, micro_batches=1)
    every = 64 * 2 * LENGTH
    assert every * 0.5 < load.scored < every * 0.7
    assert measured(FULL, MeanField(draws=1)).scored == 4 * LENGTH


def test_measuring_does_not_depend_on_global_random_state() -> None:
    torch.manual_seed(0)
    first = measured(BLOCKS, StaircaseElbo(block_size=BLOCK))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    assert measured(BLOCKS, StaircaseElbo(block_size=BLOCK)) == first
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)
