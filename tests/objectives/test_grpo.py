import math

import pytest
import torch
from tests.objectives.batches import ToyPolicy, estimate, rollouts

from stabledrl.errors import UserInputError
from stabledrl.objectives import GRPO
from stabledrl.protocols import Objective

F64 = torch.float64


def one_row(log_ratio: float, advantage: float, objective: GRPO) -> tuple[float, float]:
    """Loss and its derivative by the log-likelihood, for a single completion."""
    elbo = torch.tensor([log_ratio - 2.0], dtype=F64).requires_grad_()
    batch = rollouts(torch.tensor([-2.0], dtype=F64), torch.tensor([advantage], dtype=F64), torch.tensor([0]))
    loss = objective(estimate(elbo), batch).loss
    loss.backward()
    return loss.item(), elbo.grad.item()


@pytest.mark.parametrize("advantage", [0.7, -0.7])
@pytest.mark.parametrize("log_ratio", [-3.0, -0.5, -0.1, 0.0, 0.1, 0.3, 3.0])
def test_loss_and_gradient_match_the_definition(log_ratio, advantage):
    rho = math.exp(log_ratio)
    clipped = min(max(rho, 1 - 0.1), 1 + 0.25)
    loss, gradient = one_row(log_ratio, advantage, GRPO(eps_low=0.1, eps_high=0.25))
    assert loss == pytest.approx(-min(rho * advantage, clipped * advantage))
    stopped = (advantage > 0 and rho > 1.25) or (advantage < 0 and rho < 0.9)
    assert gradient == pytest.approx(0 if stopped else -rho * advantage)


def test_gradient_goes_through_the_ratio():
    policy = ToyPolicy(6)
    old = policy().elbo.detach() - 0.1 * torch.randn(6, dtype=F64)
    batch = rollouts(old, torch.randn(6, dtype=F64), torch.tensor([0, 0, 0, 1, 1, 1]))

    def loss(theta):
        return GRPO()(policy(theta), batch).loss

    assert torch.autograd.gradcheck(loss, policy.theta)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_shares_of_micro_batches_add_up(size):
    policy, index = ToyPolicy(8), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    batch = rollouts(policy().elbo + 0.3 * torch.randn(8, dtype=F64), torch.randn(8, dtype=F64), index)
    whole = GRPO()(policy(), batch).loss
    parts = [
        GRPO()(policy().select(slice(i, i + size)), batch.select(slice(i, i + size))).loss for i in range(0, 8, size)
    ]
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(policy.gradient(sum(parts)), policy.gradient(whole))


def test_an_ungraded_row_contributes_nothing_whatever_its_estimate_but_counts_in_the_mean():
    elbo = torch.tensor([-1.0, -2.0, float("nan")]).requires_grad_()
    advantages, index = torch.tensor([1.0, -1.0, 0.0]), torch.zeros(3, dtype=torch.int64)
    graded = torch.tensor([True, True, False])
    loss = GRPO()(estimate(elbo), rollouts(torch.tensor([-1.0, -2.5, -1.0]), advantages, index, graded=graded)).loss
    assert loss.item() == pytest.approx(-(1.0 - math.exp(0.5)) / 3)
    loss.backward()
    assert elbo.grad[:2].tolist() == pytest.approx([-1 / 3, math.exp(0.5) / 3])


@pytest.mark.parametrize("log_ratio", [-1000.0, 1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_ratios_are_clamped_before_exp(log_ratio, advantage):
    elbo = torch.tensor([log_ratio]).requires_grad_()
    loss = GRPO()(estimate(elbo), rollouts(torch.zeros(1), torch.tensor([advantage]), torch.tensor([0]))).loss
    loss.backward()
    assert loss.isfinite()
    assert elbo.grad.item() == 0


def test_nan_in_a_graded_row_reaches_the_loss():
    batch = rollouts(torch.zeros(2), torch.ones(2), torch.zeros(2, dtype=torch.int64))
    assert GRPO()(estimate(torch.tensor([0.0, float("nan")])), batch).loss.isnan()


def test_metrics_describe_the_ratios_and_its_own_bounds():
    batch = rollouts(torch.zeros(4), torch.ones(4), torch.zeros(4, dtype=torch.int64))
    metrics = GRPO(eps_low=0.5, eps_high=2.0)(estimate(torch.tensor([-1.0, -0.1, 1.0, 3.0])), batch).metrics
    assert metrics["clip_fraction_low"].item() == 0.25
    assert metrics["clip_fraction_high"].item() == 0.25
    assert metrics["log_ratio_max"].item() == 3.0
    assert not any(value.requires_grad for value in metrics.values())


def test_is_an_objective_that_needs_the_lower_bound_only():
    assert isinstance(GRPO(), Objective)
    assert GRPO().needs == {"elbo"}
    assert GRPO().uses_ratio


@pytest.mark.parametrize("arguments", [{"eps_low": 0.0}, {"eps_high": -0.2}, {"eps_high": float("nan")}])
def test_widths_that_leave_no_interval_are_refused(arguments):
    with pytest.raises(UserInputError, match="must be greater than 0"):
        GRPO(**arguments)
