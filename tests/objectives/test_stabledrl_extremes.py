"""What makes the update stable: extreme log-ratios, the convex hull, and rows or prompts without a signal."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.objectives.batches import ToyPolicy, estimate, rollouts

from stabledrl.objectives import GRPO, StableDRL

F64 = torch.float64
NAN = float("nan")
ONE = torch.zeros(4, dtype=torch.int64)


def weights_of(log_ratio, objective, index=ONE):
    batch = rollouts(torch.zeros(len(log_ratio)), torch.zeros(len(log_ratio)), index)
    return objective.weights(torch.tensor(log_ratio), batch).tolist()


@pytest.mark.parametrize(
    ("log_ratio", "objective", "expected"),
    [
        ([1000.0] * 4, StableDRL(), [0.25] * 4),
        ([-1000.0] * 4, StableDRL(), [0.25] * 4),
        ([-1000.0] * 4, StableDRL(clip=False), [0.25] * 4),
        ([1000.0, -1000.0, 0.0, 0.0], StableDRL(), [6 / 8, 0.0, 1 / 8, 1 / 8]),
        ([1000.0, -1000.0, 0.0, 0.0], StableDRL(eps_low=0.2, eps_high=0.2), [1.2 / 4, 0.8 / 4, 1 / 4, 1 / 4]),
        ([1000.0, -1000.0, 0.0, 0.0], StableDRL(clip=False), [1.0, 0.0, 0.0, 0.0]),
        ([1000.0, -1000.0, 0.0, 0.0], StableDRL(self_normalize=False), [6 / 4, 0.0, 1 / 4, 1 / 4]),
        ([-1000.0] * 4, StableDRL(self_normalize=False), [0.0] * 4),
    ],
)
def test_weights_at_extreme_log_ratios(log_ratio, objective, expected):
    assert weights_of(log_ratio, objective) == pytest.approx(expected, rel=1e-5, abs=1e-30)


@given(
    log_ratio=st.lists(st.floats(-1000, 1000), min_size=1, max_size=6),
    advantages=st.lists(st.floats(-10, 10), min_size=6, max_size=6),
    eps=st.sampled_from([(None, 5.0), (0.2, 0.2), (None, None)]),
)
def test_the_update_is_a_convex_combination_of_the_rows_updates(log_ratio, advantages, eps):
    rows = len(log_ratio)
    policy = ToyPolicy(rows)
    current = policy()
    advantage = torch.tensor(advantages[:rows], dtype=F64)
    old = current.elbo.detach() - torch.tensor(log_ratio, dtype=F64)
    batch = rollouts(old, advantage, torch.zeros(rows, dtype=torch.int64))
    update = -policy.gradient(StableDRL(*eps, surrogate="elbo")(current, batch).loss)
    scores = policy.gradients(policy().elbo)
    longest = (advantage[:, None] * scores).norm(dim=1).max()
    assert update.norm() <= longest * (1 + 1e-9)
    # The rows' gradients are linearly independent, so the coefficients that make up the update are unique.
    solved = torch.linalg.lstsq(scores.T, update[:, None]).solution[:, 0]
    torch.testing.assert_close(scores.T @ solved, update)
    known = advantage.abs() > 1e-3
    coefficients = solved[known] / advantage[known]
    assert (coefficients >= -1e-6).all()
    assert coefficients.sum() <= 1 + 1e-6
    if known.all():
        assert coefficients.sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [5.0, 20.0, 60.0])
def test_the_clip_holds_for_either_sign_of_the_advantage_where_grpos_does_not(advantage, log_ratio):
    gradients = {}
    for objective in (StableDRL(surrogate="elbo"), StableDRL(surrogate="elbo", self_normalize=False), GRPO()):
        elbo = torch.tensor([log_ratio, 0.0, 0.0, 0.0]).requires_grad_()
        batch = rollouts(torch.zeros(4), torch.tensor([advantage, -advantage, 0.0, 0.0]), ONE)
        objective(estimate(elbo), batch).loss.backward()
        gradients[type(objective).__name__, getattr(objective, "self_normalize", None)] = elbo.grad.abs()
    assert gradients["StableDRL", True].sum() <= 1 + 1e-6
    assert gradients["StableDRL", True][0].item() == pytest.approx(6 / 9)
    assert gradients["StableDRL", False][0].item() == pytest.approx(6 / 4)
    expected = math.exp(log_ratio) / 4 if advantage < 0 else 0.0
    assert gradients["GRPO", None][0].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("value", [1000.0, -1000.0])
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("self_normalize", [True, False])
def test_loss_gradient_and_metrics_are_finite_at_extremes(value, clip, self_normalize):
    elbo = torch.tensor([value, -value, 0.0, 1.0, value, value]).requires_grad_()
    batch = rollouts(torch.zeros(6), torch.tensor([-1.0, 1.0, 0.5, -0.5, 1.0, -1.0]), torch.tensor([0, 0, 0, 0, 1, 1]))
    output = StableDRL(surrogate="elbo", clip=clip, self_normalize=self_normalize)(estimate(elbo), batch)
    output.loss.backward()
    assert output.loss.isfinite()
    assert elbo.grad.isfinite().all()
    assert all(metric.isfinite() for metric in output.metrics.values())
    assert output.metrics["log_ratio_max"].item() == 1000.0


@pytest.mark.parametrize("self_normalize", [True, False])
@pytest.mark.parametrize("estimate_of_ungraded", [0.0, 1000.0, NAN, float("-inf")])
def test_ungraded_rows_change_neither_loss_nor_the_other_rows_gradient(self_normalize, estimate_of_ungraded):
    objective = StableDRL(surrogate="elbo", self_normalize=self_normalize)
    elbo, old = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -1.0, -3.0])
    advantages = torch.tensor([1.0, -0.5, -0.5])
    alone = elbo.clone().requires_grad_()
    loss = objective(estimate(alone), rollouts(old, advantages, ONE[:3])).loss
    loss.backward()
    more = torch.cat([elbo[:1], torch.tensor([estimate_of_ungraded]), elbo[1:]]).requires_grad_()
    batch = rollouts(
        torch.cat([old[:1], torch.zeros(1), old[1:]]),
        torch.cat([advantages[:1], torch.zeros(1), advantages[1:]]),
        ONE,
        graded=torch.tensor([True, False, True, True]),
    )
    with_ungraded = objective(estimate(more), batch).loss
    with_ungraded.backward()
    torch.testing.assert_close(with_ungraded, loss)
    torch.testing.assert_close(more.grad[[0, 2, 3]], alone.grad)


@pytest.mark.parametrize("objective", [StableDRL(surrogate="elbo"), GRPO()])
def test_a_batch_without_a_graded_row_has_zero_loss_that_still_reaches_the_policy(objective):
    policy = ToyPolicy(4)
    graded = torch.zeros(4, dtype=torch.bool)
    output = objective(policy(), rollouts(torch.zeros(4, dtype=F64), torch.zeros(4, dtype=F64), ONE, graded=graded))
    assert output.loss.item() == 0
    assert torch.equal(policy.gradient(output.loss), torch.zeros_like(policy.theta))
    assert all(metric.isfinite() for metric in output.metrics.values())


def test_a_prompt_without_signal_adds_nothing_but_counts_in_the_mean():
    elbo = torch.tensor([-1.0, -2.0, -3.0, -4.0]).requires_grad_()
    advantages, index = torch.tensor([1.0, -1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1])
    old = torch.tensor([-1.0, -2.0, -9.0, 5.0])
    both = StableDRL(surrogate="elbo")(estimate(elbo), rollouts(old, advantages, index)).loss
    first = StableDRL(surrogate="elbo")(estimate(elbo[:2]), rollouts(old[:2], advantages[:2], index[:2])).loss
    torch.testing.assert_close(both, first / 2)
    both.backward()
    assert elbo.grad[2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("self_normalize", [True, False])
def test_nan_in_a_graded_row_reaches_the_loss(self_normalize):
    objective = StableDRL(surrogate="elbo", self_normalize=self_normalize)
    batch = rollouts(torch.zeros(4), torch.ones(4), ONE)
    output = objective(estimate(torch.tensor([0.0, NAN, 0.0, 0.0])), batch)
    assert output.loss.isnan()
    assert output.metrics["log_ratio_mean"].isnan()
