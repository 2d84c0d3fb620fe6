"""ESPO and GDPO, whose loss is the same formula on different estimates."""

import math
from dataclasses import replace

import pytest
import torch
from tests.objectives.token_batches import LENGTHS, random_batch, token_estimate, ungrade

from stabledrl.errors import UserInputError
from stabledrl.objectives import ESPO, GDPO
from stabledrl.protocols import Objective
from stabledrl.types import RolloutBatch

every_objective = pytest.mark.parametrize("kind", [ESPO, GDPO])


def written_out(current: torch.Tensor, batch: RolloutBatch, low: float, high: float) -> tuple[float, list[list[float]]]:
    """Loss and its gradient by every token's share, in plain Python."""
    current = current.detach()
    loss, gradient = 0.0, [[0.0] * current.shape[1] for _ in LENGTHS]
    for row, length in enumerate(LENGTHS):
        bound = sum(float(current[row, token]) for token in range(length))
        old = sum(float(batch.old.token_elbo[row, token]) for token in range(length))
        ratio = math.exp((bound - old) / length)
        advantage = float(batch.advantages[row])
        clipped = min(max(ratio, 1 - low), 1 + high)
        loss -= min(ratio * advantage, clipped * advantage) / len(LENGTHS)
        if not (advantage > 0 and ratio > 1 + high) and not (advantage < 0 and ratio < 1 - low):
            for token in range(length):
                gradient[row][token] = -advantage * ratio / length / len(LENGTHS)
    return loss, gradient


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.05, 0.5, 3.0])
@every_objective
def test_loss_and_gradient_are_those_of_the_formula(kind: type[Objective], spread: float, seed: int) -> None:
    current, batch = random_batch(seed, spread)
    found = kind(eps_low=0.1, eps_high=0.25)(token_estimate(current), batch).loss  # type: ignore[call-arg]
    loss, gradient = written_out(current, batch, 0.1, 0.25)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(loss, rel=1e-12)
    found.backward()
    torch.testing.assert_close(current.grad, torch.tensor(gradient, dtype=torch.float64))


@every_objective
def test_the_estimators_reduction_does_not_matter(kind: type[Objective]) -> None:
    current, batch = random_batch(0)
    losses = []
    for reduction in ("sum", "length_normalized"):
        old = token_estimate(batch.old.token_elbo, reduction=reduction)
        losses.append(kind()(token_estimate(current, reduction=reduction), replace(batch, old=old)).loss)
    assert losses[0] == losses[1]


@pytest.mark.parametrize("size", [1, 2, 4])
@every_objective
def test_shares_of_micro_batches_add_up(kind: type[Objective], size: int) -> None:
    current, batch = random_batch(1)
    estimate = token_estimate(current)
    parts = [slice(start, start + size) for start in range(0, len(LENGTHS), size)]
    found = sum(kind()(estimate.select(part), batch.select(part)).loss for part in parts)
    torch.testing.assert_close(found, kind()(estimate, batch).loss)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
@every_objective
def test_an_ungraded_row_has_neither_loss_nor_gradient_but_counts_in_the_mean(
    kind: type[Objective], value: float
) -> None:
    current, batch = random_batch(2)
    expected = kind()(token_estimate(current), ungrade(batch, 3)).loss
    with torch.no_grad():
        others = [
            kind()(token_estimate(current).select(slice(row, row + 1)), batch.select(slice(row, row + 1))).loss
            for row in range(len(LENGTHS))
            if row != 3
        ]
        torch.testing.assert_close(expected, torch.stack(others).sum())
    broken = current.detach().clone()
    broken[3] = value
    broken.requires_grad_()
    found = kind()(token_estimate(broken), ungrade(batch, 3)).loss
    torch.testing.assert_close(found, expected)
    found.backward()
    assert broken.grad is not None
    assert broken.grad.isfinite().all()
    assert (broken.grad[3] == 0).all()


@pytest.mark.parametrize("log_ratio", [-1000.0, 1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@every_objective
def test_extreme_ratios_are_clamped_before_exp(kind: type[Objective], log_ratio: float, advantage: float) -> None:
    _, batch = random_batch(3)
    batch = replace(batch, advantages=torch.full_like(batch.advantages, advantage))
    # The length divides the exponent: an extreme ratio is extreme for every token.
    current = (batch.old.token_elbo + log_ratio).float().requires_grad_()
    loss = kind()(token_estimate(current), batch).loss
    assert loss.isfinite()
    loss.backward()
    assert current.grad is not None
    assert (current.grad == 0).all()


@every_objective
def test_nan_in_a_graded_row_reaches_the_loss(kind: type[Objective]) -> None:
    current, batch = random_batch(4)
    broken = current.detach().clone()
    broken[2, 0] = float("nan")
    assert kind()(token_estimate(broken), batch).loss.isnan()


@every_objective
def test_metrics_describe_ratios_per_token_and_carry_no_gradient(kind: type[Objective]) -> None:
    current, batch = random_batch(5)
    metrics = kind(eps_low=0.1, eps_high=0.1)(token_estimate(current), batch).metrics  # type: ignore[call-arg]
    difference = (token_estimate(current.detach()).token_elbo - batch.old.token_elbo).sum(dim=1) / torch.tensor(LENGTHS)
    assert float(metrics["log_ratio_mean"]) == pytest.approx(float(difference.mean()))
    assert float(metrics["log_ratio_max"]) == pytest.approx(float(difference.max()))
    assert float(metrics["clip_fraction_high"]) == pytest.approx(float((difference.exp() > 1.1).double().mean()))
    assert float(metrics["clip_fraction_low"]) == pytest.approx(float((difference.exp() < 0.9).double().mean()))
    assert not any(value.requires_grad for value in metrics.values())


@every_objective
def test_is_an_objective_that_needs_the_lower_bound_only(kind: type[Objective]) -> None:
    assert isinstance(kind(), Objective)
    assert kind().needs == {"elbo"}
    assert kind().uses_ratio


@pytest.mark.parametrize("arguments", [{"eps_low": 0.0}, {"eps_high": -0.2}, {"eps_high": float("nan")}])
@every_objective
def test_widths_that_leave_no_interval_are_refused(kind: type[Objective], arguments: dict[str, float]) -> None:
    with pytest.raises(UserInputError, match="must be greater than 0"):
        kind(**arguments)
