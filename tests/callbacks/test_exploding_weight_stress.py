"""The stress test in a real training."""

import logging
from pathlib import Path

import pytest
import torch
from tests.test_stress import NoRatio
from tests.training import Recorder, events, largest_difference, same, tiny_module, train, weights

from stabledrl.callbacks import ExplodingWeightStress, PolicyDriftMonitor, RunCheckpoint
from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.objectives import GRPO

SHARED = MonteCarloElbo(draws=2, masking="uniform", share_masks=True)


def test_ratios_are_noisy_from_the_stated_step_on_and_drift_and_rewards_are_not(tmp_path: Path) -> None:
    plain, stressed = tmp_path / "plain", tmp_path / "stressed"
    train(tiny_module(likelihood=SHARED, objective=GRPO()), PolicyDriftMonitor(), steps=1, updates=1, log_to=plain)
    stress = ExplodingWeightStress(scale=3.0)
    train(
        tiny_module(likelihood=SHARED, objective=GRPO()),
        PolicyDriftMonitor(),
        stress,
        steps=1,
        updates=1,
        log_to=stressed,
    )
    before, after = events(plain), events(stressed)
    assert before["train/log_ratio_std"][0] == [pytest.approx(0, abs=1e-6)]
    assert after["train/log_ratio_std"][0][0] > 1
    assert after["train/ratio_kurtosis"][0][0] > 1
    for name in ("rollout/reward_mean", "train/drift_kl"):
        assert before[name][0] == after[name][0]


def test_nothing_changes_before_the_stated_step() -> None:
    modules = [tiny_module(), tiny_module(), tiny_module()]
    train(modules[0], steps=2)
    train(modules[1], ExplodingWeightStress(from_step=2), steps=2)
    train(modules[2], ExplodingWeightStress(from_step=1), steps=2)
    assert same(weights(modules[0]), weights(modules[1]))
    assert largest_difference(weights(modules[0]), weights(modules[2])) > 0


@pytest.mark.parametrize("shared_by_group", [True, False])
def test_groups_split_over_micro_batches_get_the_noise_of_whole_ones(shared_by_group: bool) -> None:
    gradients = []
    for accumulate in (1, 4):
        recorder = Recorder()
        stress = ExplodingWeightStress(scale=0.5, shared_by_group=shared_by_group)
        train(tiny_module(likelihood=SHARED), recorder, stress, steps=1, accumulate=accumulate)
        gradients.append(torch.cat([gradient.flatten() for gradient in recorder.gradients[0]]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_a_resumed_run_draws_the_noise_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, first, rest = tiny_module(), tiny_module(), tiny_module()
    train(whole, ExplodingWeightStress(), steps=5)
    train(first, ExplodingWeightStress(), RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=3), steps=3)
    train(rest, ExplodingWeightStress(), steps=5, ckpt_path=tmp_path / "last.ckpt")
    assert same(weights(whole), weights(rest))


def test_it_says_what_it_does_and_leaves_the_module_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    module = tiny_module()
    objective = module.objective
    with caplog.at_level(logging.WARNING, logger="stabledrl"):
        train(module, ExplodingWeightStress(law="student_t", scale=2.5), steps=1)
    assert "law='student_t'" in caplog.text
    assert "scale=2.5" in caplog.text
    assert module.objective is objective


def test_an_objective_without_ratio_is_refused_at_the_start() -> None:
    with pytest.raises(UserInputError, match="NoRatio uses no importance ratio"):
        train(tiny_module(objective=NoRatio()), ExplodingWeightStress(), steps=1)


def test_a_negative_first_step_is_refused() -> None:
    with pytest.raises(UserInputError, match="from_step -1"):
        ExplodingWeightStress(from_step=-1)
