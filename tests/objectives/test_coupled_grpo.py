import math
from dataclasses import replace

import pytest
import torch
from tests.diffusion.laws import make_rows
from tests.likelihoods.joint import VOCABULARY, TableDenoiser, inconsistent_denoiser, ragged_rows
from tests.objectives.token_batches import LENGTHS, random_batch, token_estimate, ungrade

from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.objectives import CoupledGRPO
from stabledrl.protocols import Objective
from stabledrl.types import RolloutBatch


def written_out(current: torch.Tensor, batch: RolloutBatch, low: float, high: float) -> tuple[float, list[list[float]]]:
    """Loss and its gradient by every token's share, in plain Python."""
    current = current.detach()
    loss, gradient, tokens = 0.0, [[0.0] * current.shape[1] for _ in LENGTHS], sum(LENGTHS)
    for row, length in enumerate(LENGTHS):
        advantage = float(batch.advantages[row])
        for token in range(length):
            ratio = math.exp(float(current[row, token]) - float(batch.old.token_elbo[row, token]))
            clipped = min(max(ratio, 1 - low), 1 + high)
            loss -= min(ratio * advantage, clipped * advantage) / tokens
            if not (advantage > 0 and ratio > 1 + high) and not (advantage < 0 and ratio < 1 - low):
                gradient[row][token] = -advantage * ratio / tokens
    return loss, gradient


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.05, 0.5, 3.0])
def test_loss_and_gradient_are_those_of_the_formula(spread: float, seed: int) -> None:
    current, batch = random_batch(seed, spread)
    found = CoupledGRPO(eps_low=0.1, eps_high=0.25)(token_estimate(current), batch).loss
    loss, gradient = written_out(current, batch, 0.1, 0.25)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(loss, rel=1e-12)
    found.backward()
    torch.testing.assert_close(current.grad, torch.tensor(gradient, dtype=torch.float64))


def test_a_tokens_share_is_half_of_full_view_and_weighted_coupled_view() -> None:
    rows, denoiser = ragged_rows(), inconsistent_denoiser(6)
    measure = MonteCarloElbo(draws=3, masking="coupled", share_masks=True)
    corruption = measure.corrupt(rows, update=None)
    found = measure(denoiser, rows, corruption, vocabulary=VOCABULARY)
    for row, length in enumerate(rows.lengths.tolist()):
        views = corruption.masked[row, :, rows.prompt_length :].tolist()
        assert views[0] == [True] * length + [False] * (6 - length)
        for token in range(length):
            view = 1 if views[1][token] else 2
            weight = float(corruption.weight[row, view, token]) / 1.5  # 1 / t or 1 / (1 - t)
            alone, given = (float(found.token_log_probs[row, draw, token]) for draw in (0, view))
            assert float(found.token_elbo[row, token]) == pytest.approx((alone + weight * given) / 2, rel=1e-5)


def test_ratios_are_1_for_unmoved_weights_and_follow_moved_ones() -> None:
    measure = MonteCarloElbo(draws=3, masking="coupled", share_masks=True)
    rows = make_rows(torch.tensor(LENGTHS), 5, ids=torch.arange(30).reshape(6, 5) % 3)
    table = inconsistent_denoiser(5).table
    masks = [measure.corrupt(rows, update=update) for update in (None, 1)]
    old, same = (measure(TableDenoiser(table), rows, mask, vocabulary=VOCABULARY) for mask in masks)
    _, batch = random_batch(0)
    batch = replace(batch, sequences=rows, old=old)
    objective = CoupledGRPO()
    assert float(objective(same, batch).metrics["log_ratio_std"]) == 0
    moved = measure(TableDenoiser(0.9 * table), rows, masks[1], vocabulary=VOCABULARY)
    assert float(objective(moved, batch).metrics["log_ratio_std"]) > 0.01


@pytest.mark.parametrize("size", [1, 2, 4])
def test_shares_of_micro_batches_add_up(size: int) -> None:
    current, batch = random_batch(1)
    estimate, objective = token_estimate(current), CoupledGRPO()
    parts = [slice(start, start + size) for start in range(0, len(LENGTHS), size)]
    found = sum(objective(estimate.select(part), batch.select(part)).loss for part in parts)
    torch.testing.assert_close(found, objective(estimate, batch).loss)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
def test_an_ungraded_row_has_neither_loss_nor_gradient_but_its_tokens_count(value: float) -> None:
    current, batch = random_batch(2)
    loss, _ = written_out(current, ungrade(batch, 3), 0.2, 0.2)
    broken = current.detach().clone()
    broken[3] = value
    broken.requires_grad_()
    found = CoupledGRPO()(token_estimate(broken), ungrade(batch, 3)).loss
    assert found.item() == pytest.approx(loss)
    found.backward()
    assert broken.grad is not None
    assert broken.grad.isfinite().all()
    assert (broken.grad[3] == 0).all()


@pytest.mark.parametrize("log_ratio", [-1000.0, 1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_extreme_ratios_are_clamped_before_exp(log_ratio: float, advantage: float) -> None:
    _, batch = random_batch(3)
    batch = replace(batch, advantages=torch.full_like(batch.advantages, advantage))
    current = (batch.old.token_elbo + log_ratio).float().requires_grad_()
    loss = CoupledGRPO()(token_estimate(current), batch).loss
    assert loss.isfinite()
    loss.backward()
    assert current.grad is not None
    assert (current.grad == 0).all()


def test_nan_in_a_graded_row_reaches_the_loss() -> None:
    current, batch = random_batch(4)
    broken = current.detach().clone()
    broken[2, 0] = float("nan")
    assert CoupledGRPO()(token_estimate(broken), batch).loss.isnan()


def test_is_an_objective_that_needs_shared_masks() -> None:
    assert isinstance(CoupledGRPO(), Objective)
    assert CoupledGRPO().needs == {"elbo", "shared_masks"}
    assert CoupledGRPO().uses_ratio
    assert MonteCarloElbo(draws=3, masking="coupled", share_masks=True).provides >= CoupledGRPO().needs
    assert not MonteCarloElbo(draws=3, masking="coupled").provides >= CoupledGRPO().needs


@pytest.mark.parametrize("arguments", [{"eps_low": 0.0}, {"eps_high": -0.2}, {"eps_high": float("nan")}])
def test_widths_that_leave_no_interval_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(UserInputError, match="must be greater than 0"):
        CoupledGRPO(**arguments)
