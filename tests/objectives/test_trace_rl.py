import math
from typing import Any

import pytest
import torch
from tests.objectives.ragged_batches import F64, TokenPolicy, ragged_rollouts, token_estimate, without_reward
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.objectives import TraceRL
from stabledrl.protocols import GroupCoupledObjective, Objective
from stabledrl.types import LikelihoodEstimate, RolloutBatch

LENGTHS = torch.tensor([5, 1, 3, 4, 5, 2])
INDEX = torch.tensor([0, 0, 0, 1, 1, 1])
ADVANTAGES = torch.tensor([0.7, -0.4, -0.3, 1.0, 0.0, -1.0], dtype=F64)
NAN = float("nan")


def batch_of(policy: TokenPolicy, spread: float = 0.3) -> RolloutBatch:
    return ragged_rollouts(policy.old(spread), LENGTHS, ADVANTAGES, INDEX)


def published(new: list[list[float]], batch: RolloutBatch, low: float, high: float, kl: float) -> float:
    """The loss by loops over completions and tokens."""
    total = 0.0
    for row, length in enumerate(LENGTHS.tolist()):
        if not batch.graded[row]:
            continue
        advantage = float(batch.advantages[row])
        for place in range(length):
            delta = new[row][place] - float(batch.old.token_elbo[row, place])
            delta = min(max(delta, -10.0), 10.0)
            ratio = math.exp(delta)
            gain = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
            k3 = math.exp(-delta) - 1 + delta
            total += (gain - kl * k3) / length
    return -total / len(LENGTHS)


def numeric_gradient(policy: TokenPolicy, batch: RolloutBatch, objective: TraceRL, step: float = 1e-6) -> Tensor:
    settings = (objective.eps_low or 1.0, objective.eps_high or math.inf, objective.kl_old)
    parts = []
    for axis in torch.eye(6, dtype=F64) * step:
        sides = [policy((policy.theta + sign * axis).detach()).token_elbo.tolist() for sign in (1, -1)]
        ahead, behind = (published(side, batch, *settings) for side in sides)
        parts.append((ahead - behind) / (2 * step))
    return torch.tensor(parts, dtype=F64)


@pytest.mark.parametrize(
    "objective",
    [TraceRL(), TraceRL(0.1, 0.25, 0.5), TraceRL(None, None, 0.0), TraceRL(kl_old=0.0)],
    ids=["published", "other bounds", "no bounds", "no KL"],
)
@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5, 4.0])
def test_loss_and_gradient_match_the_loops_over_completions_and_tokens(objective: TraceRL, spread: float) -> None:
    policy = TokenPolicy(LENGTHS, 5)
    batch = batch_of(policy, spread)
    current = policy()
    loss = objective(current, batch).loss
    settings = (objective.eps_low or 1.0, objective.eps_high or math.inf, objective.kl_old)
    assert loss.item() == pytest.approx(published(current.token_elbo.tolist(), batch, *settings), rel=1e-9, abs=1e-12)
    found = policy.gradient(loss)
    torch.testing.assert_close(found, numeric_gradient(policy, batch, objective), rtol=1e-5, atol=1e-7)
    assert found.abs().sum() > 1e-3


def test_at_unmoved_weights_the_gradient_is_the_plain_policy_gradient_and_the_penalty_adds_none() -> None:
    policy = TokenPolicy(LENGTHS, 5)
    batch = batch_of(policy, spread=0.0)
    plain = -(ADVANTAGES * policy().token_elbo.sum(dim=1) / LENGTHS).mean()
    for kl_old in (0.0, 0.01, 100.0):
        loss = TraceRL(kl_old=kl_old)(policy(), batch).loss
        torch.testing.assert_close(policy.gradient(loss), policy.gradient(plain))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_shares_of_micro_batches_add_up_also_where_groups_are_split(size: int) -> None:
    policy = TokenPolicy(LENGTHS, 5)
    batch = batch_of(policy)
    whole = TraceRL()(policy(), batch).loss
    rows = [slice(start, start + size) for start in range(0, 6, size)]
    parts = [TraceRL()(policy().select(part), batch.select(part)).loss for part in rows]
    torch.testing.assert_close(torch.stack(parts).sum(), whole)
    torch.testing.assert_close(policy.gradient(torch.stack(parts).sum()), policy.gradient(whole))


@pytest.mark.parametrize("share", [-3.0, 1e4, NAN])
def test_a_row_without_reward_contributes_nothing_whatever_its_estimates_but_counts_in_the_mean(share: float) -> None:
    policy = TokenPolicy(LENGTHS, 5)
    batch = without_reward(batch_of(policy), 2, share)
    assert batch.graded.sum() == 5
    current = policy().token_elbo.detach()
    current[2] = share
    current.requires_grad_()
    loss = TraceRL()(token_estimate(current, policy.mask), batch).loss
    assert loss.item() == pytest.approx(published(policy().token_elbo.tolist(), batch, 0.2, 0.2, 0.01))
    (gradient,) = torch.autograd.grad(loss, current)
    assert torch.equal(gradient[2], torch.zeros(5, dtype=F64))
    assert gradient.isfinite().all()


def test_a_batch_without_a_graded_row_has_zero_loss_that_still_reaches_the_policy() -> None:
    policy = TokenPolicy(LENGTHS, 5)
    nothing = torch.zeros(6, dtype=torch.bool)
    batch = ragged_rollouts(policy.old(0.3), LENGTHS, ADVANTAGES, INDEX, graded=nothing)
    output = TraceRL()(policy(), batch)
    assert output.loss.item() == 0
    assert torch.equal(policy.gradient(output.loss), torch.zeros(6, dtype=F64))
    assert all(value.isfinite() for value in output.metrics.values())


def one_token(log_ratio: float, advantage: float, objective: TraceRL) -> tuple[float, float]:
    new = torch.tensor([[log_ratio]]).requires_grad_()
    batch = ragged_rollouts(torch.zeros(1, 1), torch.tensor([1]), torch.tensor([advantage]), torch.tensor([0]))
    loss = objective(token_estimate(new, torch.ones(1, 1, dtype=torch.bool)), batch).loss
    (gradient,) = torch.autograd.grad(loss, new)
    return loss.item(), gradient.item()


@pytest.mark.parametrize("log_ratio", [-1000.0, -10.5, 10.5, 1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_log_ratios_beyond_ten_are_clamped_and_carry_no_gradient(log_ratio: float, advantage: float) -> None:
    loss, gradient = one_token(log_ratio, advantage, TraceRL(None, None, 0.5))
    limit = math.copysign(10.0, log_ratio)
    assert loss == pytest.approx(-advantage * math.exp(limit) + 0.5 * (math.exp(-limit) - 1 + limit), rel=1e-5)
    assert gradient == 0
    assert one_token(math.copysign(9.5, log_ratio), advantage, TraceRL(None, None, 0.5))[1] != 0


def test_nan_in_a_graded_row_reaches_the_loss() -> None:
    assert math.isnan(one_token(NAN, 1.0, TraceRL())[0])


def test_metrics_describe_the_tokens_ratios_and_the_divergence_from_the_old_policy() -> None:
    policy = TokenPolicy(LENGTHS, 5)
    batch = batch_of(policy, 0.5)
    metrics = TraceRL(0.1, 0.3)(policy(), batch).metrics
    tokens = [(row, place) for row, length in enumerate(LENGTHS.tolist()) for place in range(length)]
    difference = (policy().token_elbo - batch.old.token_elbo).detach()
    log_ratios = torch.stack([difference[at] for at in tokens])
    assert metrics["log_ratio_mean"].item() == pytest.approx(log_ratios.mean().item())
    assert metrics["log_ratio_max"].item() == pytest.approx(log_ratios.max().item())
    assert metrics["clip_fraction_high"].item() == pytest.approx((log_ratios.exp() > 1.3).double().mean().item())
    k3 = [sum(math.expm1(-float(x)) + float(x) for x in row[:n]) / n for row, n in zip(difference, LENGTHS.tolist())]
    assert metrics["kl_old"].item() == pytest.approx(sum(k3) / 6)
    assert not any(value.requires_grad for value in metrics.values())


def test_needs_tokens_that_both_policies_scored_on_masks_of_the_rollout() -> None:
    objective = TraceRL()
    assert objective.needs == {"elbo", "shared_masks", "step_map"}
    assert objective.uses_ratio
    assert isinstance(objective, Objective)
    assert not isinstance(objective, GroupCoupledObjective)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"eps_low": 0.0}, "eps_low 0.0 must be greater than 0"),
        ({"eps_high": NAN}, "eps_high nan must be greater than 0"),
        ({"kl_old": -0.1}, "kl_old -0.1 must be a finite number of at least 0"),
        ({"kl_old": NAN}, "kl_old nan"),
        ({"kl_old": math.inf}, "kl_old inf"),
    ],
)
def test_values_out_of_range_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(UserInputError, match=told):
        TraceRL(**arguments)


def test_the_penalty_pulls_back_a_token_that_moved_where_the_advantage_says_nothing() -> None:
    for log_ratio in (-0.5, 0.5):
        _, gradient = one_token(log_ratio, 0.0, TraceRL())
        assert gradient == pytest.approx(0.01 * (1 - math.exp(-log_ratio)), rel=1e-5)


def test_tokens_that_no_draw_scored_do_not_count_as_moved() -> None:
    scored = torch.tensor([[True, False]])
    batch = ragged_rollouts(torch.tensor([[0.0, -5.0]]), torch.tensor([2]), torch.ones(1), torch.tensor([0]))
    current = LikelihoodEstimate(
        elbo=torch.zeros(1), token_elbo=torch.zeros(1, 2), token_log_probs=torch.zeros(1, 1, 2), scored=scored[:, None]
    )
    assert TraceRL()(current, batch).loss.item() == pytest.approx(-0.5)
