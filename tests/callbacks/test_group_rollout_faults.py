"""GroupRollout on rollouts that teach nothing, lack rewards or repeat themselves."""

import logging
from pathlib import Path

import pytest
import torch
from tests.training import (
    Digits,
    Fixed,
    Recorder,
    Scripted,
    all_equal,
    level,
    same,
    tiny_module,
    train,
    weights,
)

from stabledrl.callbacks import GroupRollout, RunCheckpoint
from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.objectives import StableDRL

SHARED = MonteCarloElbo(draws=2, masking="uniform", share_masks=True)


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_unmoved_weights_and_shared_masks_give_ratios_of_one(updates: int, accumulate: int) -> None:
    recorder = Recorder()
    module = tiny_module(
        likelihood=SHARED, objective=StableDRL(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0)
    )
    train(module, recorder, steps=2 * updates, updates=updates, accumulate=accumulate)
    assert len(recorder.metrics) == 2 * updates * accumulate
    assert max(abs(metrics["train/log_ratio_max"]) for metrics in recorder.metrics[accumulate - 1 :]) < 1e-6
    assert max(metrics["train/log_ratio_std"] for metrics in recorder.metrics[accumulate - 1 :]) < 1e-6


def test_moved_weights_give_other_ratios() -> None:
    recorder = Recorder()
    train(tiny_module(likelihood=SHARED), recorder, steps=2, updates=2)
    assert recorder.metrics[0]["train/log_ratio_max"] < 1e-6 < recorder.metrics[1]["train/log_ratio_std"]


def vary_then_flat() -> Scripted:
    return Scripted(level(0.5), lambda count: [0.5] * count)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_flat_groups_leave_the_weights_alone_although_momentum_and_decay_exist(accumulate: int) -> None:
    recorder, module = Recorder(), tiny_module()
    trainer = train(module, recorder, steps=4, updates=2, accumulate=accumulate, tasks=[Digits(vary_then_flat())])
    assert trainer.global_step == 4
    assert not same(recorder.weights[0], recorder.weights[1])
    assert same(recorder.weights[2], weights(module))  # neither of the second rollout's two updates
    assert recorder.metrics[-1]["rollout/zero_variance_groups"] == 1.0
    assert recorder.batches[-1]["rollouts"].advantages.abs().max() == 0


def test_flat_groups_end_at_max_steps_from_the_start() -> None:
    module = tiny_module()
    before = weights(module)
    assert train(module, steps=5, tasks=[Digits(all_equal)]).global_step == 5
    assert same(before, weights(module))


def test_kl_acts_on_flat_groups() -> None:
    recorder, module = Recorder(), tiny_module(kl_coefficient=0.5)
    train(module, recorder, steps=4, updates=2, tasks=[Digits(vary_then_flat())])
    assert any(gradient.abs().max() > 0 for gradient in recorder.gradients[3])
    assert not same(recorder.weights[2], weights(module))


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf"), float("-inf")])
def test_missing_rewards_are_left_out_and_counted(missing: float | None) -> None:
    recorder = Recorder()
    script = Scripted(lambda count: [missing if row % 4 == 0 else float(row % 4) for row in range(count)])
    train(tiny_module(), recorder, steps=1, tasks=[Digits(script)])
    rollouts = recorder.batches[0]["rollouts"]
    assert rollouts.graded.tolist() == [False, True, True, True] * 2
    torch.testing.assert_close(rollouts.advantages, torch.tensor([0.0, -1.0, 0.0, 1.0] * 2))
    assert recorder.metrics[0]["rollout/ungraded"] == 0.25
    assert recorder.metrics[0]["rollout/reward_mean"] == 2.0


@pytest.mark.parametrize(("allowed", "stops"), [(0.25, False), (0.2, True)])
def test_too_many_missing_rewards_stop_the_run(allowed: float, stops: bool) -> None:
    script = Scripted(lambda count: [None if row % 4 == 0 else float(row % 4) for row in range(count)])
    rollout = GroupRollout(group_size=4, updates_per_rollout=1, max_ungraded_share=allowed, seed=0)
    if stops:
        with pytest.raises(UserInputError, match=r"25% .* no finite reward, more than max_ungraded_share 20%"):
            train(tiny_module(), steps=1, rollout=rollout, tasks=[Digits(script)])
    else:
        assert train(tiny_module(), steps=1, rollout=rollout, tasks=[Digits(script)]).global_step == 1


def test_a_rollout_without_any_reward_makes_no_update_where_that_is_allowed() -> None:
    module = tiny_module()
    before = weights(module)
    rollout = GroupRollout(group_size=4, updates_per_rollout=1, max_ungraded_share=1.0, seed=0)
    script = Scripted(lambda count: [None] * count)
    assert train(module, steps=2, rollout=rollout, tasks=[Digits(script)]).global_step == 2
    assert same(before, weights(module))


def test_identical_completions_are_told_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    with caplog.at_level(logging.WARNING, logger="stabledrl"):
        train(tiny_module(sampler=Fixed(3, 4, 5, 6)), recorder, steps=4, updates=2)
    assert [record.message for record in caplog.records if "same completion" in record.message] == [
        "step 0: 100% of the prompts got 4 times the same completion and teach nothing (told once, see "
        "rollout/identical_groups). Try a higher temperature"
    ]
    assert recorder.metrics[-1]["rollout/identical_groups"] == 1.0


def test_what_was_told_is_not_told_again_after_a_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tiny_module(sampler=Fixed(3, 4)), RunCheckpoint(dirpath=str(tmp_path)), steps=2)
    train(tiny_module(sampler=Fixed(3, 4)), steps=4, ckpt_path=tmp_path / "last.ckpt")
    assert sum("same completion" in record.message for record in caplog.records) == 1


def test_distinct_completions_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    train(tiny_module(), steps=2)
    assert not [record for record in caplog.records if record.name == "stabledrl"]


def test_a_completion_of_the_end_token_alone_is_trained_on() -> None:
    recorder, module = Recorder(), tiny_module(sampler=Fixed(0, 5, 5, 5), kl_coefficient=0.1)
    train(module, recorder, steps=2, tasks=[Digits(Scripted(level(0.0)))])
    assert recorder.batches[0]["rollouts"].sequences.lengths.tolist() == [1] * 8
    assert all(torch.isfinite(value).all() for value in weights(module).values())
    assert all(gradient.isfinite().all() for gradients in recorder.gradients for gradient in gradients)
