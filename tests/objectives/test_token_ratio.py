import math

import pytest
import torch
from tests.objectives import ragged_batches
from tests.objectives.token_problem import LENGTHS, token_problem

from stabledrl.objectives.token_ratio import token_ratio_metrics, token_surrogate

NAN = float("nan")
BOUNDS = [(0.5, 0.5), (0.1, 0.3), (None, 0.2), (0.2, None), (None, None)]


def token_estimate(shares, lengths):
    return ragged_batches.token_estimate(shares, torch.arange(shares.shape[1]) < lengths[:, None])


def token_rollouts(old_tokens, advantages, lengths, graded=None):
    index = torch.zeros(len(lengths), dtype=torch.int64)
    return ragged_batches.ragged_rollouts(old_tokens, lengths, advantages, index, graded=graded)


def one_token(log_ratio, advantage, **arguments):
    """Gain of a single token and its derivative by the log-probability."""
    share = torch.tensor([[log_ratio - 2.0]], dtype=torch.float64).requires_grad_()
    ones = torch.ones(1, dtype=torch.int64)
    batch = token_rollouts(torch.tensor([[-2.0]]).double(), torch.tensor([advantage]).double(), ones)
    gain = token_surrogate(token_estimate(share, ones), batch, 0.1, 0.25, **arguments)
    gain.sum().backward()
    return gain.item(), share.grad.item()


@pytest.mark.parametrize("advantage", [0.7, -0.7])
@pytest.mark.parametrize("log_ratio", [-3.0, -0.5, -0.1, 0.0, 0.1, 0.3, 3.0])
def test_gain_and_gradient_of_a_token_match_the_definition(log_ratio, advantage):
    rho = math.exp(log_ratio)
    gain, gradient = one_token(log_ratio, advantage)
    assert gain == pytest.approx(min(rho * advantage, min(max(rho, 0.9), 1.25) * advantage))
    stopped = (advantage > 0 and rho > 1.25) or (advantage < 0 and rho < 0.9)
    assert gradient == pytest.approx(0 if stopped else rho * advantage)


@pytest.mark.parametrize(("eps_low", "eps_high"), BOUNDS)
def test_every_token_has_its_own_ratio_and_its_rows_advantage(eps_low, eps_high):
    policy, batch = token_problem()
    current = policy()
    found = token_surrogate(current, batch, eps_low, eps_high)
    low, high = 0.0 if eps_low is None else 1 - eps_low, math.inf if eps_high is None else 1 + eps_high
    for row in range(len(LENGTHS)):
        for token in range(4):
            if token >= LENGTHS[row] or not batch.graded[row]:
                assert found[row, token] == 0
                continue
            advantage = batch.advantages[row].item()
            rho = math.exp(current.token_elbo[row, token].item() - batch.old.token_elbo[row, token].item())
            expected = min(rho * advantage, min(max(rho, low), high) * advantage)
            assert found[row, token].item() == pytest.approx(expected)


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf, 1000.0])
def test_rows_without_a_reward_and_tokens_without_a_score_decide_neither_value_nor_gradient(value):
    lengths = torch.tensor([2, 1])
    shares = torch.tensor([[value, value], [-1.0, value]]).requires_grad_()
    batch = token_rollouts(torch.zeros(2, 2), torch.ones(2), lengths, torch.tensor([False, True]))
    found = token_surrogate(token_estimate(shares, lengths), batch, None, None)
    found.sum().backward()
    assert found.tolist() == [[0.0, 0.0], [pytest.approx(math.exp(-1)), 0.0]]
    assert shares.grad.tolist() == [[0.0, 0.0], [pytest.approx(math.exp(-1)), 0.0]]


def test_a_token_that_only_the_old_estimates_noise_moves_is_left_out():
    lengths = torch.tensor([2])
    batch = token_rollouts(torch.full((1, 2), -3.0), torch.ones(1), lengths)
    current = token_estimate(torch.full((1, 2), -3.0), torch.tensor([1]))
    assert token_surrogate(current, batch, None, None).tolist() == [[1.0, 0.0]]
    assert token_ratio_metrics(current, batch, None, None)["log_ratio_max"] == 0


@pytest.mark.parametrize("log_ratio", [-1000.0, 1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_ratios_are_clamped_before_exp(log_ratio, advantage):
    gain, gradient = one_token(log_ratio, advantage)
    assert math.isfinite(gain)
    assert gradient == 0
    gain, gradient = one_token(log_ratio, advantage, limit=10.0)
    assert abs(gain) <= math.exp(10.0) * (1 + 1e-9)
    assert gradient == 0
    if log_ratio > 0 > advantage:
        assert gain == pytest.approx(-math.exp(10.0))


def test_nan_of_a_graded_token_reaches_gain_and_metrics():
    lengths = torch.tensor([2])
    batch = token_rollouts(torch.zeros(1, 2), torch.ones(1), lengths)
    current = token_estimate(torch.tensor([[0.0, NAN]]), lengths)
    assert token_surrogate(current, batch, 0.2, 0.2).isnan().tolist() == [[False, True]]
    assert token_ratio_metrics(current, batch, 0.2, 0.2)["log_ratio_mean"].isnan()


def test_metrics_are_over_the_scored_tokens_and_its_own_bounds():
    lengths = torch.tensor([3, 1])
    shares = torch.tensor([[-1.0, -0.1, 1.0], [3.0, 99.0, 99.0]]).requires_grad_()
    batch = token_rollouts(torch.zeros(2, 3), torch.ones(2), lengths)
    metrics = token_ratio_metrics(token_estimate(shares, lengths), batch, 0.5, 2.0)
    tokens = torch.tensor([-1.0, -0.1, 1.0, 3.0])
    torch.testing.assert_close(metrics["log_ratio_mean"], tokens.mean())
    torch.testing.assert_close(metrics["log_ratio_std"], tokens.std(unbiased=False))
    assert metrics["log_ratio_max"].item() == 3.0
    assert metrics["clip_fraction_low"].item() == 0.25
    assert metrics["clip_fraction_high"].item() == 0.25
    assert not any(value.requires_grad for value in metrics.values())
    free = token_ratio_metrics(token_estimate(shares, lengths), batch, None, None)
    assert free["clip_fraction_low"].item() == free["clip_fraction_high"].item() == 0
