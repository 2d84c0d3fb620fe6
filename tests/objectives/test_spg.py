from dataclasses import replace

import pytest
import torch
from tests.objectives.ragged_batches import TokenPolicy
from tests.objectives.token_problem import GRADED, LENGTHS, token_problem, with_upper_bound

from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.module import check_needs
from stabledrl.objectives import SPG
from stabledrl.protocols import GroupCoupledObjective, Objective
from stabledrl.samplers import SemiAutoregressiveSampler

NAN = float("nan")


def literal_loss(current, batch, omega):
    """-(1 / sum L) sum A L l, with l between the bounds where the advantage is not positive."""
    total = 0
    for i in range(len(batch)):
        if not batch.graded[i]:
            continue
        advantage = batch.advantages[i].item()
        value = current.elbo[i] if advantage > 0 else omega * current.eubo[i] + (1 - omega) * current.elbo[i]
        total = total - advantage * int(LENGTHS[i]) * value
    return total / int(LENGTHS.sum())


@pytest.mark.parametrize("omega", [0.0, 0.5, 0.8, 1.0])
def test_loss_and_gradient_are_the_published_ones(omega):
    policy, batch = token_problem()
    current = with_upper_bound(policy())
    found, expected = SPG(omega)(current, batch).loss, literal_loss(current, batch, omega)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(policy.gradient(found), policy.gradient(expected))


def test_the_lower_bound_alone_is_the_policy_gradient_of_the_summed_bound():
    policy, batch = token_problem()
    plain = -(batch.advantages[:, None] * policy().token_elbo).sum() / LENGTHS.sum()
    torch.testing.assert_close(
        policy.gradient(SPG(0.0)(with_upper_bound(policy()), batch).loss), policy.gradient(plain)
    )


@pytest.mark.parametrize("size", [1, 2, 4])
def test_shares_of_micro_batches_add_up(size):
    policy, batch = token_problem()
    current = with_upper_bound(policy())
    whole = SPG()(current, batch).loss
    parts = [
        SPG()(current.select(slice(i, i + size)), batch.select(slice(i, i + size))).loss for i in range(0, 8, size)
    ]
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(policy.gradient(sum(parts)), policy.gradient(whole))


@pytest.mark.parametrize("value", [NAN, float("-inf"), 1000.0])
def test_an_ungraded_row_changes_neither_loss_nor_gradient_but_its_tokens_count(value):
    policy, batch = token_problem()
    current = with_upper_bound(policy()).detach()
    elbo, eubo = current.elbo.clone().masked_fill(~GRADED, value), current.eubo.clone().masked_fill(~GRADED, value)
    elbo.requires_grad_(), eubo.requires_grad_()
    loss = SPG()(replace(current, elbo=elbo, eubo=eubo), batch).loss
    torch.testing.assert_close(loss.detach(), literal_loss(current, batch, 0.5))
    loss.backward()
    assert elbo.grad[~GRADED].tolist() == eubo.grad[~GRADED].tolist() == [0.0]


def test_the_old_policy_does_not_matter():
    policy, batch = token_problem()
    other = replace(batch, old=TokenPolicy(LENGTHS, 4, seed=3)().detach())
    current = with_upper_bound(policy())
    assert torch.equal(SPG()(current, other).loss, SPG()(current, batch).loss)


def test_a_batch_without_a_graded_row_has_zero_loss_that_still_reaches_the_policy():
    policy, batch = token_problem(graded=torch.zeros(8, dtype=torch.bool))
    output = SPG()(with_upper_bound(policy()), batch)
    assert output.loss.item() == 0
    assert torch.equal(policy.gradient(output.loss), torch.zeros_like(policy.theta))


def test_nan_in_a_graded_row_reaches_the_loss():
    policy, batch = token_problem()
    current = with_upper_bound(policy()).detach()
    current.elbo[0] = NAN
    output = SPG()(current, batch)
    assert output.loss.isnan()
    assert output.metrics["log_likelihood_mean"].isnan()


def test_metrics_tell_the_bounds():
    policy, batch = token_problem()
    current = with_upper_bound(policy())
    metrics = SPG()(current, batch).metrics
    torch.testing.assert_close(metrics["log_likelihood_mean"], current.elbo.mean().detach())
    torch.testing.assert_close(metrics["bound_gap_mean"], (current.eubo - current.elbo).mean().detach())
    assert not any(value.requires_grad for value in metrics.values())


def test_needs_both_bounds_per_token_and_no_ratio():
    sampler = SemiAutoregressiveSampler(completion_length=4, block_size=4, denoising_steps=4)
    assert isinstance(SPG(), Objective)
    assert not isinstance(SPG(), GroupCoupledObjective)
    assert not SPG().uses_ratio
    check_needs(SPG(), MonteCarloElbo(), sampler)
    for settings, missing in (({"eubo_beta": None}, "eubo"), ({"reduction": "sum"}, "length_normalized")):
        with pytest.raises(UserInputError, match=f"SPG needs {missing}"):
            check_needs(SPG(), MonteCarloElbo(**settings), sampler)


@pytest.mark.parametrize("omega", [-0.1, 1.5, NAN])
def test_omega_out_of_range_is_refused(omega):
    with pytest.raises(UserInputError, match=f"omega {omega} must lie between 0 and 1"):
        SPG(omega)
