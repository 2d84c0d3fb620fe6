import math
from typing import Any

import pytest
import torch
from tests.objectives.ragged_batches import F64, TokenPolicy, ragged_rollouts, token_estimate, without_reward
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.objectives import DMPO
from stabledrl.protocols import GroupCoupledObjective
from stabledrl.types import RolloutBatch

LENGTHS = torch.tensor([5, 1, 3, 4, 5, 2, 3])
INDEX = torch.tensor([0, 1, 0, 1, 1, 0, 1])
REWARDS = torch.tensor([1.0, 0.25, 0.0, 0.75, 0.25, 0.5, 1.0], dtype=F64)
BASELINES = ["negative", "mean", "none"]
NAN = float("nan")


def batch_of(policy: TokenPolicy, rewards: Tensor = REWARDS) -> RolloutBatch:
    return ragged_rollouts(policy.old(0.3), LENGTHS, rewards, INDEX)


def published(shares: list[list[float]], batch: RolloutBatch, alpha: float, baseline: str) -> float:
    """The loss by loops over prompts, completions and tokens."""
    total = 0.0
    for group in (0, 1):
        rows = [row for row in range(7) if INDEX[row] == group and batch.graded[row]]
        rewards = [float(batch.rewards[row]) for row in rows]
        up = [math.exp(reward / alpha) for reward in rewards]
        down = [math.exp(-reward / alpha) for reward in rewards]
        subtracted = {
            "negative": [part / sum(down) for part in down],
            "mean": [1 / len(rows)] * len(rows),
            "none": [0.0] * len(rows),
        }[baseline]
        for row, weight, less in zip(rows, up, subtracted):
            cross_entropy = 0.0
            for place in range(int(LENGTHS[row])):
                cross_entropy -= shares[row][place] / int(LENGTHS[row])
            total += (weight / sum(up) - less) * cross_entropy
    return total / 2


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("alpha", [0.04, 0.3, 5.0])
def test_loss_and_gradient_match_the_loops_over_prompts_completions_and_tokens(alpha: float, baseline: Any) -> None:
    policy = TokenPolicy(LENGTHS, 5)
    batch, objective = batch_of(policy), DMPO(alpha, baseline)
    loss = objective(policy(), batch).loss
    assert loss.item() == pytest.approx(published(policy().token_elbo.tolist(), batch, alpha, baseline), rel=1e-9)
    step, expected = 1e-6, []
    for axis in torch.eye(6, dtype=F64) * step:
        sides = [policy((policy.theta + sign * axis).detach()).token_elbo.tolist() for sign in (1, -1)]
        ahead, behind = (published(side, batch, alpha, baseline) for side in sides)
        expected.append((ahead - behind) / (2 * step))
    torch.testing.assert_close(policy.gradient(loss), torch.tensor(expected, dtype=F64), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("baseline", ["negative", "mean"])
def test_with_a_baseline_a_prompts_weights_sum_to_zero_and_vanish_where_rewards_are_equal(baseline: Any) -> None:
    policy = TokenPolicy(LENGTHS, 5)
    weights = DMPO(0.2, baseline).weights(batch_of(policy))
    for group in (0, 1):
        assert weights[group == INDEX].sum().item() == pytest.approx(0, abs=1e-12)
        assert weights[group == INDEX].abs().max() > 0.1
    for level in (0.0, 1.0, 1e6):
        flat = DMPO(0.04, baseline).weights(batch_of(policy, torch.full((7,), level, dtype=F64)))
        assert flat.abs().max() < 1e-9


def test_without_a_baseline_weights_are_a_distribution_that_prefers_the_best() -> None:
    weights = DMPO(0.2, "none").weights(batch_of(TokenPolicy(LENGTHS, 5)))
    assert (weights > 0).all()
    for group in (0, 1):
        assert weights[group == INDEX].sum().item() == pytest.approx(1)
    assert weights[INDEX == 0].argmax() == 0


def test_what_is_added_to_all_rewards_of_a_prompt_changes_nothing() -> None:
    policy = TokenPolicy(LENGTHS, 5)
    shifted = REWARDS + torch.tensor([3.0, -70.0], dtype=F64)[INDEX]
    for baseline in BASELINES:
        objective: Any = DMPO(0.1, baseline)  # type: ignore[arg-type]
        torch.testing.assert_close(objective.weights(batch_of(policy, shifted)), objective.weights(batch_of(policy)))


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_shares_of_micro_batches_of_split_groups_add_up(size: int, baseline: Any) -> None:
    policy, objective = TokenPolicy(LENGTHS, 5), DMPO(0.2, baseline)
    batch = batch_of(policy)
    whole = objective(policy(), batch).loss
    rows = [slice(start, start + size) for start in range(0, 7, size)]
    normalizer = objective.log_normalizers(None, batch)
    parts = [objective(policy().select(p), batch.select(p), group_log_normalizer=normalizer).loss for p in rows]
    torch.testing.assert_close(torch.stack(parts).sum(), whole)
    torch.testing.assert_close(policy.gradient(torch.stack(parts).sum()), policy.gradient(whole))
    combined = torch.stack([objective.log_normalizers(None, batch.select(part)) for part in rows]).logsumexp(dim=0)
    torch.testing.assert_close(combined, normalizer)


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("share", [-3.0, 1e4, NAN])
def test_a_row_without_reward_neither_weighs_nor_counts(share: float, baseline: Any) -> None:
    policy = TokenPolicy(LENGTHS, 5)
    batch = without_reward(batch_of(policy), 3, share)
    current = policy().token_elbo.detach()
    current[3] = share
    current.requires_grad_()
    loss = DMPO(0.3, baseline)(token_estimate(current, policy.mask), batch).loss
    assert loss.item() == pytest.approx(published(policy().token_elbo.tolist(), batch, 0.3, baseline))
    (gradient,) = torch.autograd.grad(loss, current)
    assert torch.equal(gradient[3], torch.zeros(5, dtype=F64))
    assert gradient.isfinite().all()


@pytest.mark.parametrize("baseline", BASELINES)
def test_a_prompt_without_a_graded_row_adds_nothing_but_counts_in_the_mean(baseline: Any) -> None:
    policy, objective = TokenPolicy(LENGTHS, 5), DMPO(0.3, baseline)
    batch = ragged_rollouts(policy.old(0.3), LENGTHS, REWARDS, INDEX, graded=INDEX == 0)
    assert objective.log_normalizers(None, batch)[1].isneginf().all()
    only = ragged_rollouts(policy.old(0.3), LENGTHS, REWARDS, INDEX).select(INDEX == 0)
    alone = objective(policy().select(INDEX == 0), only).loss  # totals are those of both prompts
    torch.testing.assert_close(objective(policy(), batch).loss, alone)
    nothing = ragged_rollouts(policy.old(0.3), LENGTHS, REWARDS, INDEX, graded=torch.zeros(7, dtype=torch.bool))
    output = objective(policy(), nothing)
    assert output.loss.item() == 0
    assert torch.equal(policy.gradient(output.loss), torch.zeros(6, dtype=F64))
    assert output.metrics["effective_sample_size"] == 0


@pytest.mark.parametrize("baseline", BASELINES)
def test_rewards_far_apart_or_far_from_zero_give_finite_weights_in_float32(baseline: Any) -> None:
    rewards = torch.tensor([1e6, 1e6, 0.0, -1e6])
    batch = ragged_rollouts(torch.zeros(4, 1), torch.ones(4, dtype=torch.int64), rewards, torch.zeros(4).long())
    weights = DMPO(0.01, baseline).weights(batch)
    less = {"negative": [0.0, 0.0, 0.0, 1.0], "mean": [0.25] * 4, "none": [0.0] * 4}[baseline]
    assert weights.tolist() == pytest.approx([0.5 - less[0], 0.5 - less[1], -less[2], -less[3]], abs=1e-7)


def test_nan_in_a_graded_row_reaches_the_loss() -> None:
    policy = TokenPolicy(LENGTHS, 5)
    current = policy().token_elbo.detach()
    current[1, 0] = NAN
    assert DMPO()(token_estimate(current, policy.mask), batch_of(policy)).loss.isnan()


def test_the_old_estimate_has_no_say() -> None:
    policy = TokenPolicy(LENGTHS, 5)
    near, far = (ragged_rollouts(policy.old(spread), LENGTHS, REWARDS, INDEX) for spread in (0.0, 50.0))
    assert torch.equal(DMPO()(policy(), near).loss, DMPO()(policy(), far).loss)
    assert not DMPO().uses_ratio
    assert isinstance(DMPO(), GroupCoupledObjective)
    assert DMPO().needs == {"elbo"}


def test_the_effective_sample_size_is_that_of_the_tilted_weights() -> None:
    batch = batch_of(TokenPolicy(LENGTHS, 5))
    weights = DMPO(0.5, "none").weights(batch)
    expected = [1 / weights[group == INDEX].square().sum().item() for group in (0, 1)]
    for baseline in BASELINES:
        objective: Any = DMPO(0.5, baseline)  # type: ignore[arg-type]
        found = objective(TokenPolicy(LENGTHS, 5)(), batch).metrics["effective_sample_size"]
        assert found.item() == pytest.approx(sum(expected) / 2)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"alpha": 0.0}, "alpha 0.0 must be finite and above 0"),
        ({"alpha": -1.0}, "alpha -1.0"),
        ({"alpha": NAN}, "alpha nan"),
        ({"alpha": math.inf}, "alpha inf"),
        ({"baseline": "group"}, "baseline 'group' is not one of negative, mean, none"),
    ],
)
def test_values_out_of_range_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(UserInputError, match=told):
        DMPO(**arguments)
