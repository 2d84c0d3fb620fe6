from dataclasses import replace

import pytest
import torch
from tests.objectives.ragged_batches import TokenPolicy
from tests.objectives.token_problem import LENGTHS, token_problem

from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MeanField, MonteCarloElbo
from stabledrl.module import check_needs
from stabledrl.objectives import DiffuGRPO
from stabledrl.objectives.kl import kl_shares
from stabledrl.protocols import GroupCoupledObjective, Objective
from stabledrl.samplers import SemiAutoregressiveSampler


def literal_loss(current, batch, *, low, high, beta=0.0):
    """The published loss, token by token: PPO's minimum and the k3 divergence, then the mean over all tokens."""
    total = 0
    for i in range(len(batch)):
        for k in range(int(LENGTHS[i])):
            rho = torch.exp(current.token_elbo[i, k] - batch.old.token_elbo[i, k])
            clipped = torch.clamp(rho, low, high)
            if batch.graded[i]:
                total = total - torch.min(rho * batch.advantages[i], clipped * batch.advantages[i])
            if beta:
                x = batch.reference.token_elbo[i, k] - current.token_elbo[i, k]
                total = total + beta * (torch.exp(x) - x - 1)
    return total / int(LENGTHS.sum())


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (0.2, 0.8)])
def test_loss_and_gradient_are_the_published_ones(spread, low, high):
    policy, batch = token_problem(spread=spread)
    found = DiffuGRPO(eps_low=low, eps_high=high)(policy(), batch).loss
    expected = literal_loss(policy(), batch, low=1 - low, high=1 + high)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(policy.gradient(found), policy.gradient(expected))


def test_with_the_modules_divergence_it_is_the_published_loss_with_its_penalty():
    policy, batch = token_problem()
    batch = replace(batch, reference=TokenPolicy(LENGTHS, 4, seed=1)().detach())
    current = policy()
    found = DiffuGRPO()(current, batch).loss + 0.04 * kl_shares(current, batch, "k3", "token").sum()
    expected = literal_loss(policy(), batch, low=0.5, high=1.5, beta=0.04)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(policy.gradient(found), policy.gradient(expected))


def test_gradient_goes_through_the_ratio():
    policy, batch = token_problem(spread=0.05)
    assert torch.autograd.gradcheck(lambda theta: DiffuGRPO()(policy(theta), batch).loss, policy.theta)


def test_unmoved_weights_give_the_policy_gradient_averaged_over_tokens():
    policy, batch = token_problem(spread=0.0)
    loss = DiffuGRPO()(policy(), batch).loss
    assert loss.item() == pytest.approx(-(batch.advantages * LENGTHS).sum().item() / LENGTHS.sum().item())
    plain = -(batch.advantages * policy().token_elbo.sum(dim=1)).sum() / LENGTHS.sum()
    torch.testing.assert_close(policy.gradient(loss), policy.gradient(plain))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_shares_of_micro_batches_add_up(size):
    policy, batch = token_problem()
    whole = DiffuGRPO()(policy(), batch).loss
    parts = [
        DiffuGRPO()(policy().select(slice(i, i + size)), batch.select(slice(i, i + size))).loss
        for i in range(0, 8, size)
    ]
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(policy.gradient(sum(parts)), policy.gradient(whole))


def test_a_batch_without_a_graded_row_has_zero_loss_that_still_reaches_the_policy():
    policy, batch = token_problem(graded=torch.zeros(8, dtype=torch.bool))
    output = DiffuGRPO()(policy(), batch)
    assert output.loss.item() == 0
    assert torch.equal(policy.gradient(output.loss), torch.zeros_like(policy.theta))
    assert all(metric.isfinite() for metric in output.metrics.values())


def test_nan_in_a_graded_row_reaches_the_loss():
    policy, batch = token_problem()
    current = policy().detach()
    current.token_elbo[0, 0] = float("nan")
    assert DiffuGRPO()(current, batch).loss.isnan()


@pytest.mark.parametrize("spread", [1000.0, -1000.0])
def test_loss_gradient_and_metrics_are_finite_at_extreme_ratios(spread):
    policy, batch = token_problem(spread=spread)
    output = DiffuGRPO()(policy(), batch)
    assert output.loss.isfinite()
    assert policy.gradient(output.loss).isfinite().all()
    assert all(metric.isfinite() for metric in output.metrics.values())


def test_metrics_use_its_own_bounds():
    policy, batch = token_problem()
    log_ratio = (policy().token_elbo - batch.old.token_elbo)[policy().scored[:, 0]]
    metrics = DiffuGRPO(eps_low=0.3, eps_high=0.7)(policy(), batch).metrics
    assert metrics["clip_fraction_low"].item() == pytest.approx((log_ratio.exp() < 0.7).double().mean().item())
    assert metrics["clip_fraction_high"].item() == pytest.approx((log_ratio.exp() > 1.7).double().mean().item())


def test_needs_tokens_that_can_be_compared():
    sampler = SemiAutoregressiveSampler(completion_length=4, block_size=4, denoising_steps=4)
    assert isinstance(DiffuGRPO(), Objective)
    assert not isinstance(DiffuGRPO(), GroupCoupledObjective)
    assert DiffuGRPO().uses_ratio
    for likelihood in (MeanField(), MonteCarloElbo(share_masks=True)):
        check_needs(DiffuGRPO(), likelihood, sampler)
    for likelihood in (MeanField(share_masks=False), MonteCarloElbo()):
        with pytest.raises(UserInputError, match="DiffuGRPO needs shared_masks"):
            check_needs(DiffuGRPO(), likelihood, sampler)


@pytest.mark.parametrize("arguments", [{"eps_low": 0.0}, {"eps_high": -0.5}, {"eps_high": float("nan")}])
def test_widths_that_leave_no_interval_are_refused(arguments):
    with pytest.raises(UserInputError, match="must be greater than 0"):
        DiffuGRPO(**arguments)
