"""U1: a whole step of reinforcement learning, from prompts to new weights."""

import copy
from functools import partial

import torch
from torch import Tensor

from benchmarks.speed import plain
from benchmarks.speed.comparison import Comparison
from benchmarks.speed.models import FIRST, EndingAt, make_keys, make_policy
from benchmarks.speed.rollouts import TEMPERATURE
from stabledrl.advantages import group_advantages
from stabledrl.backbones import Policy
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.objectives import StableDRL
from stabledrl.samplers import SemiAutoregressiveSampler
from stabledrl.types import Completions, Corruption, LikelihoodEstimate, RolloutBatch, Sequences, UpdateTotals

MEASURE = MonteCarloElbo(draws=2, masking="complementary", eubo_beta=None)
GROUPS, UPDATES = 4, 2


def u1(*, group_size: int = 4, prompt: int = 36, completion: int = 64, steps: int = 64) -> list[Comparison]:
    """A rollout, the old policy's estimate and two updates. The prompts' completions end at 1/4, 1/2, 3/4 and never.

    Plainly: the decoding loop over whole sequences and to the last step, and estimates from all logits.
    """
    policy, rows = make_policy(), GROUPS * group_size
    size = policy.vocabulary.num_candidates
    prompts = torch.randint(FIRST, size, (GROUPS, prompt), generator=torch.Generator().manual_seed(0))
    prompts[:, 0] = FIRST + torch.arange(GROUPS)
    ends = torch.full((size,), prompt + 2 * completion)
    ends[prompts[:-1, 0]] = prompt + completion * torch.arange(1, GROUPS) // GROUPS - 1
    repeated, keys = prompts.repeat_interleave(group_size, dim=0), make_keys(rows)
    sampler = SemiAutoregressiveSampler(completion, completion // 8, steps)

    def ours() -> tuple[Completions, list[Tensor]]:
        trained = copy.deepcopy(policy)
        mask = torch.ones_like(repeated, dtype=torch.bool)
        forward = EndingAt(policy=trained, ends=ends)
        completions = sampler(
            forward, repeated, mask, vocabulary=policy.vocabulary, row_keys=keys, temperature=TEMPERATURE
        )
        return completions, update_policy(trained, repeated, keys, completions, groups=GROUPS)

    def baseline(draw: plain.Draw) -> tuple[Completions, list[Tensor]]:
        trained = copy.deepcopy(policy)
        sizes = {"completion_length": completion, "block_size": completion // 8, "denoising_steps": steps}
        forward = EndingAt(policy=trained, ends=ends)
        completions = plain.decode(forward, repeated, policy.vocabulary, draw, **sizes)
        weights = update_policy(trained, repeated, keys, completions, groups=GROUPS, whole_logits=True)
        return completions, weights

    def check() -> None:
        own, other = ours(), baseline(plain.inverse_cdf_draw(keys, prompt, TEMPERATURE))
        assert torch.equal(own[0].token_ids, other[0].token_ids), "completions differ"
        assert own[0].completion_mask.sum(dim=1).float().std() > 0
        moved = 0.0
        for start, found, expected in zip(policy.parameters(), own[1], other[1]):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            moved = max(moved, float((found - start.detach()).abs().max()))
        assert moved > 1e-3, "the update moves nothing"

    plainly = partial(baseline, plain.gumbel_draw(TEMPERATURE))
    case = f"{GROUPS} prompts, groups of {group_size}, {UPDATES} updates"
    return [Comparison(id="U1", case=case, ours=ours, baseline=plainly, check=check, gate=1.5, rounds=2)]


def update_policy(
    policy: Policy, prompts: Tensor, keys: Tensor, completions: Completions, *, groups: int, whole_logits: bool = False
) -> list[Tensor]:
    """Rewards completions for even tokens, scores them and updates the policy in place; returns its weights."""
    sequences = Sequences.join(prompts, torch.ones_like(prompts, dtype=torch.bool), completions, keys)
    even = (completions.token_ids % 2 == 0) & completions.completion_mask
    rewards = even.sum(dim=1) / completions.completion_mask.sum(dim=1)
    group_index = torch.arange(groups).repeat_interleave(len(prompts) // groups)
    graded = torch.ones_like(rewards, dtype=torch.bool)
    estimate = _plain_estimate if whole_logits else _estimate
    with torch.no_grad():
        old = estimate(policy, sequences, MEASURE.corrupt(sequences, update=None))
    rollouts = RolloutBatch(
        sequences=sequences,
        group_index=group_index,
        rewards=rewards,
        graded=graded,
        advantages=group_advantages(rewards, graded, group_index, groups, baseline="standardize"),
        old=old,
        totals=UpdateTotals(rows=len(rewards), groups=groups, tokens=int(sequences.lengths.sum())),
    )
    optimizer, objective = torch.optim.SGD(policy.parameters(), lr=0.1), StableDRL(surrogate="elbo")
    for update in range(UPDATES):
        current = estimate(policy, sequences, MEASURE.corrupt(sequences, update=update))
        optimizer.zero_grad()
        objective(current, rollouts).loss.backward()
        optimizer.step()
    return [weight.detach() for weight in policy.parameters()]


def _estimate(policy: Policy, sequences: Sequences, corruption: Corruption) -> LikelihoodEstimate:
    return MEASURE(policy, sequences, corruption, vocabulary=policy.vocabulary)


def _plain_estimate(policy: Policy, sequences: Sequences, corruption: Corruption) -> LikelihoodEstimate:
    log_probs = plain.token_log_probs(policy, sequences, corruption, policy.vocabulary)
    return LikelihoodEstimate(
        elbo=plain.elbo(log_probs, corruption, sequences),
        token_elbo=(log_probs * corruption.weight).mean(dim=1),
        token_log_probs=log_probs,
        scored=corruption.scored(sequences),
    )
