"""The update of StableDRL against its formula: values, gradients, divisors."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.objectives.batches import ToyPolicy, estimate, rollouts

from stabledrl.errors import UserInputError
from stabledrl.objectives import GRPO, StableDRL
from stabledrl.protocols import GroupCoupledObjective, Objective

F64 = torch.float64
INDEX = torch.tensor([2, 0, 1, 0, 2, 2, 0, 2])  # groups of 3, 1 and 4, rows mixed
EVEN = torch.tensor([0, 1, 0, 1, 1, 0, 1, 0])
SETTINGS = [
    {"eps_low": low, "eps_high": high, "surrogate": surrogate}
    for (low, high), surrogate in itertools.product(
        [(None, 5.0), (0.2, 0.2), (0.5, 3.0), (None, None)], ["sandwich", "elbo"]
    )
]


def problem(index=INDEX, *, spread=2.0, graded=None):
    """A toy policy with rollouts whose log-ratios are spread over +-`spread`."""
    policy = ToyPolicy(len(index))
    old = policy().elbo.detach() - spread * torch.randn(len(index), dtype=F64)
    return policy, rollouts(old, torch.randn(len(index), dtype=F64), index, graded=graded)


def literal_update(policy, batch, objective):
    """grad J, written as in the paper: mean over prompts of (1 / sum_i clip(rho_i)) sum_j clip(rho_j) A_j g_j."""
    low = 0.0 if objective.eps_low is None else max(1 - objective.eps_low, 0.0)
    high = float("inf") if objective.eps_high is None else 1 + objective.eps_high
    current = policy()
    rho = (current.elbo - batch.old.elbo).exp()
    total = torch.zeros_like(policy.theta)
    for group in range(batch.totals.groups):
        rows = [i for i in range(len(batch)) if batch.group_index[i] == group and batch.graded[i]]
        divisor = sum(min(max(rho[i].item(), low), high) for i in rows) if objective.self_normalize else len(rows)
        for j in rows:
            advantage = batch.advantages[j].item()
            value = current.elbo[j]
            if objective.surrogate == "sandwich" and advantage <= 0:
                value = objective.omega * current.eubo[j] + (1 - objective.omega) * current.elbo[j]
            g = torch.autograd.grad(value, policy.theta, retain_graph=True)[0]
            total += min(max(rho[j].item(), low), high) * advantage * g / divisor
    return total / batch.totals.groups


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("self_normalize", [True, False])
def test_gradient_is_the_papers_update(settings, self_normalize):
    policy, batch = problem()
    objective = StableDRL(**settings, omega=0.3, self_normalize=self_normalize)
    gradient = policy.gradient(objective(policy(), batch).loss)
    torch.testing.assert_close(-gradient, literal_update(policy, batch, objective))


@pytest.mark.parametrize("settings", SETTINGS)
def test_gradient_matches_finite_differences_with_the_weights_held(settings):
    policy, batch = problem()
    objective = StableDRL(**settings)
    weights = objective.weights(policy().elbo - batch.old.elbo, batch)

    def objective_value(theta):
        current = policy(theta)
        mixed = (current.elbo + current.eubo) / 2
        lower = settings["surrogate"] == "elbo"
        surrogate = current.elbo if lower else torch.where(batch.advantages > 0, current.elbo, mixed)
        return -(weights * batch.advantages * surrogate).sum() / 3

    theta, step = policy.theta.detach(), 1e-5
    numeric = torch.stack(
        [
            (objective_value(theta + d) - objective_value(theta - d)) / (2 * step)
            for d in step * torch.eye(len(theta), dtype=F64)
        ]
    )
    loss = objective(policy(), batch).loss
    torch.testing.assert_close(loss.detach(), objective_value(theta))
    torch.testing.assert_close(policy.gradient(loss), numeric, rtol=1e-6, atol=1e-8)


def test_no_gradient_goes_through_the_ratio():
    old = torch.tensor([-1.0, -2.0]).requires_grad_()
    batch = rollouts(old, torch.tensor([1.0, -1.0]), torch.zeros(2, dtype=torch.int64))
    elbo = torch.tensor([-1.5, -1.0]).requires_grad_()
    objective = StableDRL(surrogate="elbo")
    objective(estimate(elbo), batch).loss.backward()
    weights = objective.weights(elbo - old, batch)
    assert not weights.requires_grad
    torch.testing.assert_close(elbo.grad, -weights * batch.advantages)


@given(
    rows=st.lists(st.tuples(st.floats(-1e4, 1e4, width=32), st.integers(0, 3), st.booleans()), min_size=1, max_size=24),
    settings=st.sampled_from(SETTINGS),
)
def test_weights_sum_to_one_over_the_graded_rows_of_every_prompt(rows, settings):
    log_ratio, index, graded = (torch.tensor(column) for column in zip(*rows))
    batch = rollouts(torch.zeros(len(rows)), torch.zeros(len(rows)), index, graded=graded)
    weights = StableDRL(**settings).weights(log_ratio, batch)
    assert (weights[~graded] == 0).all()
    for group in index[graded].unique():
        assert weights[(index == group) & graded].sum().item() == pytest.approx(1, abs=2e-5)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("self_normalize", [True, False])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_micro_batches_with_the_groups_normaliser_give_the_whole_batchs_gradient(settings, self_normalize, size):
    graded = torch.tensor([True, True, True, False, True, True, True, True])
    policy, batch = problem(graded=graded)
    objective = StableDRL(**settings, self_normalize=self_normalize)
    normalizer = objective.log_normalizers(policy(), batch)
    total = torch.zeros_like(policy.theta)
    for start in range(0, 8, size):
        rows = slice(start, start + size)
        part = objective(policy().select(rows), batch.select(rows), group_log_normalizer=normalizer)
        total += policy.gradient(part.loss)
    torch.testing.assert_close(total, policy.gradient(objective(policy(), batch).loss))
    assert not normalizer.requires_grad


@pytest.mark.parametrize("self_normalize", [True, False])
def test_batches_of_whole_groups_need_no_normaliser(self_normalize):
    policy, batch = problem()
    objective = StableDRL(self_normalize=self_normalize)
    parts = [(group == INDEX).nonzero()[:, 0] for group in (2, 0, 1)]
    shares = [objective(policy().select(rows), batch.select(rows)).loss for rows in parts]
    whole = objective(policy(), batch).loss
    torch.testing.assert_close(sum(shares), whole)
    torch.testing.assert_close(policy.gradient(sum(shares)), policy.gradient(whole))


@pytest.mark.parametrize("level", [0.0, 0.5, 3.0, -7.0])
def test_equal_ratios_give_the_update_of_grpo_at_ratio_one(level):
    policy = ToyPolicy(8)
    current = policy()
    advantages = torch.randn(8, dtype=F64)
    ours = StableDRL(surrogate="elbo")(current, rollouts(current.elbo - level, advantages, EVEN))
    grpo = GRPO()(current, rollouts(current.elbo, advantages, EVEN))
    torch.testing.assert_close(policy.gradient(ours.loss), policy.gradient(grpo.loss))


def test_without_self_normalisation_each_prompts_share_is_rescaled_and_nothing_else():
    policy, batch = problem()
    log_ratio = policy().elbo - batch.old.elbo
    with_it, without = StableDRL(), StableDRL(self_normalize=False)
    clipped = log_ratio.exp().clamp(max=6.0).detach()
    sums = torch.stack([clipped[group == INDEX].sum() for group in range(3)])
    factor = sums / INDEX.bincount()
    torch.testing.assert_close(without.weights(log_ratio, batch), with_it.weights(log_ratio, batch) * factor[INDEX])
    torch.testing.assert_close(without.weights(log_ratio, batch), clipped / INDEX.bincount()[INDEX])
    metrics = with_it(policy(), batch).metrics
    for name, value in without(policy(), batch).metrics.items():
        assert torch.equal(value, metrics[name])


def test_without_clip_only_the_clip_is_dropped():
    policy, batch = problem()
    dropped, unbounded = StableDRL(eps_low=0.2, eps_high=0.2, clip=False), StableDRL(eps_low=None, eps_high=None)
    assert torch.equal(dropped(policy(), batch).loss, unbounded(policy(), batch).loss)
    log_ratio = policy().elbo - batch.old.elbo
    for group in range(3):
        rows = group == INDEX
        torch.testing.assert_close(dropped.weights(log_ratio, batch)[rows], log_ratio[rows].softmax(0).detach())


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_both_switches_change_nothing_where_they_have_nothing_to_do(spread):
    policy, batch = problem(spread=spread)
    losses = {
        (clip, normalize): StableDRL(clip=clip, self_normalize=normalize)(policy(), batch).loss.item()
        for clip, normalize in itertools.product([True, False], repeat=2)
    }
    assert losses[True, True] == losses[False, True]
    assert losses[True, False] == losses[False, False]
    assert (losses[True, True] == pytest.approx(losses[True, False], rel=1e-12)) == (spread == 0)


@given(shift=st.floats(-30, 30))
def test_a_shift_of_a_prompts_log_ratios_leaves_unclipped_weights(shift):
    policy, batch = problem()
    log_ratio = policy().elbo - batch.old.elbo
    moved = log_ratio + shift * (INDEX == 2)
    objective = StableDRL(clip=False)
    torch.testing.assert_close(objective.weights(moved, batch), objective.weights(log_ratio, batch))


def test_prompts_are_never_mixed():
    policy, batch = problem()
    log_ratio = policy().elbo - batch.old.elbo
    weights = StableDRL().weights(log_ratio, batch)
    others = INDEX != 2
    changed = StableDRL().weights(torch.where(others, log_ratio * 7 + 3, log_ratio), batch)
    assert torch.equal(changed[~others], weights[~others])
    assert not torch.equal(changed[others], weights[others])


def test_row_order_does_not_matter():
    policy, batch = problem()
    order = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    loss = StableDRL()(policy(), batch).loss
    shuffled = StableDRL()(policy().select(order), batch.select(order)).loss
    torch.testing.assert_close(policy.gradient(shuffled), policy.gradient(loss))


@pytest.mark.parametrize(("surrogate", "needs"), [("sandwich", {"elbo", "eubo"}), ("elbo", {"elbo"})])
def test_needs_follow_the_surrogate(surrogate, needs):
    objective = StableDRL(surrogate=surrogate)
    assert objective.needs == needs
    assert objective.uses_ratio
    assert isinstance(objective, Objective)
    assert isinstance(objective, GroupCoupledObjective)
    assert not isinstance(GRPO(), GroupCoupledObjective)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eps_high": 0.0}, "eps_high 0.0 must be greater than 0"),
        ({"eps_low": -1.0}, "eps_low -1.0 must be greater than 0"),
        ({"eps_high": -1.0, "clip": False}, "eps_high -1.0 must be greater than 0"),
        ({"omega": 1.5}, "omega 1.5 must lie between 0 and 1"),
        ({"omega": float("nan")}, "omega nan must lie between 0 and 1"),
        ({"surrogate": "eubo"}, "surrogate 'eubo' must be sandwich or elbo"),
    ],
)
def test_values_out_of_range_are_refused(arguments, message):
    with pytest.raises(UserInputError, match=message):
        StableDRL(**arguments)
