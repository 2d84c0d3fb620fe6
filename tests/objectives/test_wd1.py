import math
from dataclasses import replace

import pytest
import torch
from tests.objectives.batches import ToyPolicy, estimate, rollouts

from stabledrl.advantages import group_advantages
from stabledrl.errors import UserInputError
from stabledrl.objectives import WD1
from stabledrl.protocols import GroupCoupledObjective

F64 = torch.float64
NAN = float("nan")
INDEX = torch.tensor([2, 0, 1, 0, 2, 2, 0, 2])  # groups of 3, 1 and 4, rows mixed
GRADED = torch.tensor([True, True, True, False, True, True, True, True])
PARTS = [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0], [1, 2, 3, 4, 5], [6, 7]], [[i] for i in range(8)]]


def problem(graded=GRADED):
    policy = ToyPolicy(8)
    advantages = torch.randn(8, dtype=F64).masked_fill(~graded, 0.0)
    return policy, rollouts(torch.zeros(8, dtype=F64), advantages, INDEX, graded=graded)


def literal_loss(current, batch, psi):
    """-sum softmax(psi A) l + sum softmax(-psi A) l, prompt by prompt, then the mean over prompts."""
    total = 0
    for group in range(batch.totals.groups):
        rows = [i for i in range(len(batch)) if batch.group_index[i] == group and batch.graded[i]]
        up = [math.exp(psi * batch.advantages[i].item()) for i in rows]
        down = [math.exp(-psi * batch.advantages[i].item()) for i in rows]
        for i, plus, minus in zip(rows, up, down):
            total = total - plus / sum(up) * current.elbo[i] + minus / sum(down) * current.elbo[i]
    return total / batch.totals.groups


@pytest.mark.parametrize("psi", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("graded", [GRADED, torch.ones(8, dtype=torch.bool)])
def test_loss_and_gradient_are_the_published_ones(psi, graded):
    policy, batch = problem(graded)
    found, expected = WD1(psi)(policy(), batch).loss, literal_loss(policy(), batch, psi)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(policy.gradient(found), policy.gradient(expected))


@pytest.mark.parametrize("parts", PARTS)
def test_split_groups_give_the_whole_batchs_gradient(parts):
    policy, batch = problem()
    objective = WD1(2.0)
    rows = [torch.tensor(part) for part in parts]
    # The normalisers of the parts, combined as over processes.
    normalizer = torch.stack([objective.log_normalizers(None, batch.select(part)) for part in rows]).logsumexp(dim=0)
    torch.testing.assert_close(normalizer, objective.log_normalizers(None, batch))
    shares = [
        objective(policy().select(part), batch.select(part), group_log_normalizer=normalizer).loss for part in rows
    ]
    whole = objective(policy(), batch).loss
    torch.testing.assert_close(sum(shares), whole)
    torch.testing.assert_close(policy.gradient(sum(shares)), policy.gradient(whole))


def test_batches_of_whole_groups_need_no_normaliser():
    policy, batch = problem()
    parts = [(group == INDEX).nonzero()[:, 0] for group in (2, 0, 1)]
    shares = [WD1()(policy().select(part), batch.select(part)).loss for part in parts]
    torch.testing.assert_close(policy.gradient(sum(shares)), policy.gradient(WD1()(policy(), batch).loss))


@pytest.mark.parametrize("baseline", ["center", "standardize", "leave_one_out"])
@pytest.mark.parametrize("split", [True, False])
def test_equal_rewards_cancel_exactly_and_count_in_the_mean(baseline, split):
    rewards = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1, NAN, 1.0, 0.0])
    index, graded = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1]), rewards.isfinite()
    advantages = group_advantages(rewards, graded, index, 2, baseline=baseline)
    batch = rollouts(torch.zeros(8), advantages, index, graded=graded)
    elbo = torch.randn(8).requires_grad_()
    normalizer = None
    if split:
        parts = [WD1().log_normalizers(None, batch.select(slice(i, i + 2))) for i in (0, 2, 4, 6)]
        normalizer = torch.stack(parts).logsumexp(dim=0)
    loss = WD1()(estimate(elbo), batch, group_log_normalizer=normalizer).loss
    loss.backward()
    assert elbo.grad[:6].tolist() == [0.0] * 6
    gap = advantages[6].item() - advantages[7].item()
    tilt = math.tanh(gap / 2)  # softmax of two, minus its mirror
    torch.testing.assert_close(loss.detach(), -tilt * (elbo[6] - elbo[7]).detach() / 2)
    assert elbo.grad[6:].tolist() == pytest.approx([-tilt / 2, tilt / 2], rel=1e-5)


@pytest.mark.parametrize("estimate_of_ungraded", [1000.0, NAN, -math.inf])
def test_ungraded_rows_change_neither_loss_nor_gradient(estimate_of_ungraded):
    elbo = torch.tensor([-1.0, estimate_of_ungraded, -2.0, -3.0]).requires_grad_()
    advantages, index = torch.tensor([1.0, 0.0, -0.5, -0.5]), torch.zeros(4, dtype=torch.int64)
    graded = torch.tensor([True, False, True, True])
    loss = WD1()(estimate(elbo), rollouts(torch.zeros(4), advantages, index, graded=graded)).loss
    loss.backward()
    alone = elbo.detach()[graded].requires_grad_()
    expected = WD1()(estimate(alone), rollouts(torch.zeros(3), advantages[graded], index[graded])).loss
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(elbo.grad[graded], alone.grad)
    assert elbo.grad[1] == 0


def test_a_batch_without_a_graded_row_has_zero_loss_that_still_reaches_the_policy():
    policy, batch = problem(torch.zeros(8, dtype=torch.bool))
    output = WD1()(policy(), batch)
    assert output.loss.item() == 0
    assert torch.equal(policy.gradient(output.loss), torch.zeros_like(policy.theta))
    assert (WD1().log_normalizers(None, batch) == -math.inf).all()


def test_neither_old_policy_nor_other_prompts_matter():
    policy, batch = problem()
    expected = WD1().weights(batch)
    moved = replace(batch, old=estimate(torch.randn(8, dtype=F64)), advantages=batch.advantages * (1 + (INDEX != 2)))
    assert torch.equal(WD1().weights(moved)[INDEX == 2], expected[INDEX == 2])
    assert not torch.equal(WD1().weights(moved), expected)
    other_old = replace(batch, old=estimate(torch.randn(8, dtype=F64)))
    assert torch.equal(WD1()(policy(), other_old).loss, WD1()(policy(), batch).loss)


@pytest.mark.parametrize("scale", [1000.0, 1e30])
def test_extreme_advantages_give_weights_within_one(scale):
    batch = rollouts(torch.zeros(3), torch.tensor([1.0, -1.0, 0.0]) * scale, torch.zeros(3, dtype=torch.int64))
    assert WD1().weights(batch).tolist() == [1.0, -1.0, 0.0]


def test_nan_in_a_graded_row_reaches_the_loss():
    batch = rollouts(torch.zeros(2), torch.tensor([1.0, -1.0]), torch.zeros(2, dtype=torch.int64))
    output = WD1()(estimate(torch.tensor([0.0, NAN])), batch)
    assert output.loss.isnan()
    assert output.metrics["log_likelihood_mean"].isnan()


def test_metrics_tell_the_likelihood_and_the_largest_weight():
    policy, batch = problem()
    metrics = WD1()(policy(), batch).metrics
    torch.testing.assert_close(metrics["log_likelihood_mean"], policy().elbo.mean().detach())
    assert metrics["weight_max"] == WD1().weights(batch).abs().max()
    assert not any(value.requires_grad for value in metrics.values())


def test_is_coupled_through_the_group_without_a_ratio():
    assert isinstance(WD1(), GroupCoupledObjective)
    assert not WD1().uses_ratio
    assert WD1().needs == {"elbo"}


@pytest.mark.parametrize("psi", [0.0, -1.0, NAN, math.inf])
def test_psi_out_of_range_is_refused(psi):
    with pytest.raises(UserInputError, match=f"psi {psi} must be"):
        WD1(psi)
