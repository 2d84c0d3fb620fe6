"""Objectives may ask for logits or for every draw's log-probabilities: two that do, trained like any other."""

from typing import Any

import pytest
import torch
from tests.training import Recorder, tiny_module, tiny_policy, train
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo, StaircaseElbo
from stabledrl.protocols import Need, Objective
from stabledrl.samplers import BlockDiffusionSampler
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch


def entropy_of(logits: Tensor) -> Tensor:
    log_probs = logits.log_softmax(dim=-1)
    return -(log_probs.exp() * log_probs).sum(dim=-1)


class SharpenTheBetter(Objective):
    """Lowers the entropy of the predictions for completions above their group's mean, raises it for those below."""

    needs: frozenset[Need] = frozenset({"logits"})
    uses_ratio = False

    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        assert current.logits is not None
        entropy = entropy_of(current.logits)
        row = current.scored.nonzero()[:, 0]
        loss = (rollouts.advantages[row] * entropy).sum() / rollouts.totals.tokens
        return ObjectiveOutput(loss=loss, metrics={"entropy": entropy.detach().mean()})


class Reinforce(Objective):
    """The policy gradient on the mean log-probability of whatever token a draw masks."""

    needs: frozenset[Need] = frozenset({"token_log_probs"})
    uses_ratio = False

    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        mean = current.token_log_probs.sum(dim=(1, 2)) / current.scored.sum(dim=(1, 2))
        return ObjectiveOutput(loss=-(rollouts.advantages * mean).sum() / rollouts.totals.rows, metrics={})


def likelihood(**options: Any) -> MonteCarloElbo:
    return MonteCarloElbo(draws=2, masking="uniform", keep_logits=True, eubo_beta=None, **options)


def loss_by_hand(policy: Any, rollouts: RolloutBatch, kind: type) -> Tensor:
    """The first update's loss from the policy's plain logits, one masked view after the other."""
    sequences = rollouts.sequences
    masked = likelihood().corrupt(sequences, update=0).masked
    total = torch.zeros(())
    for row, views in enumerate(masked):
        entropy, log_probs = [], []
        for view in views:
            ids = sequences.token_ids[row].masked_fill(view, policy.vocabulary.mask_token_id)
            logits = policy.logits(ids[None], sequences.attention_mask[row][None])[0][view]
            entropy.append(entropy_of(logits))
            targets = sequences.token_ids[row][view]
            log_probs.append(logits.log_softmax(dim=-1).gather(1, targets[:, None])[:, 0])
        advantage = rollouts.advantages[row]
        if kind is SharpenTheBetter:
            total = total + advantage * torch.cat(entropy).sum() / rollouts.totals.tokens
        else:
            total = total - advantage * torch.cat(log_probs).mean() / rollouts.totals.rows
    return total


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("kind", [SharpenTheBetter, Reinforce])
def test_the_gradient_of_an_update_is_that_of_the_loss_written_out(kind: type, accumulate: int) -> None:
    recorder = Recorder()
    module = tiny_module(objective=kind(), likelihood=likelihood())
    train(module, recorder, steps=1, updates=1, accumulate=accumulate)
    policy = tiny_policy()
    batches = [batch["rollouts"] for batch in recorder.batches]
    assert len(batches) == accumulate
    loss = torch.stack([loss_by_hand(policy, rollouts, kind) for rollouts in batches]).sum()
    loss.backward()
    expected = torch.cat([part.grad.flatten() for part in policy.parameters() if part.grad is not None])
    found = torch.cat([part.flatten() for part in recorder.gradients[0]])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    assert expected.norm() > 1e-3


def test_an_objective_on_logits_trains() -> None:
    recorder = Recorder()
    train(tiny_module(objective=SharpenTheBetter(), likelihood=likelihood()), recorder, steps=30, updates=1)
    entropy = [metrics["train/entropy"] for metrics in recorder.metrics]
    assert abs(entropy[-1] - entropy[0]) > 0.05


def test_an_objective_on_logits_trains_a_block_diffusion_policy() -> None:
    recorder = Recorder()
    module = tiny_module(
        objective=SharpenTheBetter(),
        policy=tiny_policy(block_size=2),
        sampler=BlockDiffusionSampler(4, 2, 4),
        likelihood=StaircaseElbo(block_size=2, masking="trace", keep_logits=True),
    )
    train(module, recorder, steps=2)
    assert sum(float(part.abs().sum()) for part in recorder.gradients[1]) > 0


def test_logits_that_the_estimator_does_not_keep_are_refused_at_construction() -> None:
    with pytest.raises(UserInputError, match="SharpenTheBetter needs logits, but MonteCarloElbo provides elbo,"):
        tiny_module(objective=SharpenTheBetter(), likelihood=MonteCarloElbo(masking="uniform"))
