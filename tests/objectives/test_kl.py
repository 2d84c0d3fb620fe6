import math
from dataclasses import replace

import pytest
import torch
from tests.objectives.batches import estimate, rollouts

from stabledrl.objectives.kl import kl_penalty, kl_shares
from stabledrl.types import LikelihoodEstimate, UpdateTotals

ESTIMATORS = ("k1", "k2", "k3")


def test_values_match_their_formulas():
    current, reference = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -2.0, -1.0])
    x = [0.5, 0.0, -2.0]
    assert kl_penalty(current, reference, "k1").tolist() == pytest.approx(x)
    assert kl_penalty(current, reference, "k2").tolist() == pytest.approx([v * v / 2 for v in x])
    assert kl_penalty(current, reference, "k3").tolist() == pytest.approx([math.exp(-v) - 1 + v for v in x])


@pytest.fixture
def categorical():
    """A policy and a reference over five outcomes, so that expectations are sums."""
    logits = torch.randn(5, dtype=torch.float64).requires_grad_()
    return logits, torch.randn(5, dtype=torch.float64).log_softmax(0)


def divergence(log_p, log_q):
    return (log_p.exp() * (log_p - log_q)).sum()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_have_the_divergence_as_their_mean(categorical, estimator):
    logits, reference = categorical
    policy = logits.log_softmax(0)
    mean = (policy.exp() * kl_penalty(policy, reference, estimator)).sum()
    torch.testing.assert_close(mean, divergence(policy, reference))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_mean_gradients_are_those_the_documentation_names(categorical, estimator):
    logits, reference = categorical
    policy = logits.log_softmax(0)
    mean = (policy.exp().detach() * kl_penalty(policy, reference, estimator)).sum()  # sampling is not differentiated
    (gradient,) = torch.autograd.grad(mean, logits, retain_graph=True)
    target = {
        "k1": 0 * policy.sum(),
        "k2": divergence(policy, reference),
        "k3": divergence(reference, policy),
    }[estimator]
    (expected,) = torch.autograd.grad(target, logits)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("x", [-1000.0, -81.0, 81.0, 1000.0])
def test_far_from_the_reference_value_and_gradient_stay_finite(estimator, x):
    current = torch.full((16,), x).requires_grad_()
    value = kl_penalty(current, torch.zeros(16), estimator).sum()
    assert value.isfinite()
    (gradient,) = torch.autograd.grad(value, current)
    assert gradient.isfinite().all()
    if estimator != "k1":
        assert (gradient * x >= 0).all()  # a descent step never leads further away


@pytest.mark.parametrize("x", [0.0, 1e-4, -1e-4, 1e-3])
def test_k3_is_exact_near_the_reference_and_never_negative(x):
    value = kl_penalty(torch.tensor([x]), torch.zeros(1), "k3").item()
    assert value >= 0
    assert value == pytest.approx(math.expm1(-x) + x, rel=1e-2, abs=1e-10)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_nan_stays_and_the_reference_gets_no_gradient(estimator):
    current, reference = torch.tensor([0.5, float("nan")]).requires_grad_(), torch.zeros(2).requires_grad_()
    value = kl_penalty(current, reference, estimator)
    assert value.isnan().tolist() == [False, True]
    assert torch.autograd.grad(value[0], reference, allow_unused=True) == (None,)


def with_tokens(token_elbo: torch.Tensor) -> LikelihoodEstimate:
    return replace(estimate(token_elbo.sum(dim=1)), token_elbo=token_elbo)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_each_level_is_its_published_mean_and_adds_up_over_micro_batches(kind):
    now, before = torch.randn(2, 4, 3, dtype=torch.float64).unbind()
    lengths = torch.tensor([3, 1, 2, 3])
    scored = torch.arange(3) < lengths[:, None]
    now, before = now.masked_fill(~scored, 0.0), before.masked_fill(~scored, 0.0)
    batch = rollouts(torch.zeros(4), torch.zeros(4), torch.tensor([0, 0, 1, 1]))
    batch = replace(
        batch,
        sequences=replace(batch.sequences, completion_mask=scored),
        reference=with_tokens(before),
        totals=UpdateTotals(rows=4, groups=2, tokens=9),
    )
    x, whole = now - before, (now - before).sum(dim=1)
    formula = {"k1": lambda x: x, "k2": lambda x: x**2 / 2, "k3": lambda x: torch.exp(-x) - 1 + x}[kind]
    expected = {
        "sequence": formula(whole).mean(),
        "token": formula(x)[scored].mean(),
        "sequence_per_token": (formula(whole) / lengths).mean(),
    }
    for level, value in expected.items():
        shares = kl_shares(with_tokens(now), batch, kind, level)
        torch.testing.assert_close(shares.sum(), value)
        parts = [
            kl_shares(with_tokens(now).select(r), batch.select(r), kind, level) for r in (slice(0, 3), slice(3, 4))
        ]
        torch.testing.assert_close(torch.cat(parts), shares)
