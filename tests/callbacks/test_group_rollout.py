"""GroupRollout: micro-batches change nothing, degenerate rollouts do no harm, a resumed run is the uninterrupted one."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.demos.boring_classes import DemoModel
from tests.training import (
    Digits,
    Fixed,
    Recorder,
    Scripted,
    all_equal,
    events,
    largest_difference,
    level,
    same,
    tiny_module,
    train,
    weights,
)

from stabledrl.callbacks import GroupRollout, RunCheckpoint
from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.objectives import GRPO, StableDRL
from stabledrl.protocols import Objective

OBJECTIVES = [StableDRL(), StableDRL(eps_low=0.2, eps_high=0.2, surrogate="elbo"), GRPO()]
SHARED = MonteCarloElbo(draws=2, masking="uniform", share_masks=True)


def run(objective: Objective, accumulate: int, updates: int = 2, **options: Any) -> tuple[Recorder, LightningModule]:
    recorder, module = Recorder(), tiny_module(objective=objective, kl_coefficient=0.1)
    train(module, recorder, steps=2 * updates, accumulate=accumulate, updates=updates, **options)
    return recorder, module


# 2 prompts x 4: two micro-batches hold a whole group each; four and eight split groups. 4 x 2: four are whole groups.
@pytest.mark.parametrize(
    ("prompts", "group_size", "accumulate"), [(2, 4, 2), (2, 4, 4), (2, 4, 8), (4, 2, 4), (1, 6, 2)]
)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=["stabledrl", "stabledrl-clipped", "grpo"])
def test_micro_batches_change_neither_gradient_nor_weights(
    objective: Objective, prompts: int, group_size: int, accumulate: int
) -> None:
    whole, first = run(objective, 1, prompts=prompts, group_size=group_size)
    parts, second = run(objective, accumulate, prompts=prompts, group_size=group_size)
    assert len(whole.gradients) == len(parts.gradients) == 4
    for one, other in zip(whole.gradients, parts.gradients):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert largest_difference(weights(first), weights(second)) < 1e-6
    assert whole.metrics[-1]["train/loss"] == pytest.approx(parts.metrics[-1]["train/loss"], abs=1e-5)


def test_micro_batches_see_the_masks_of_the_whole_batch() -> None:
    seen: dict[int, list[torch.Tensor]] = {}
    for accumulate in (1, 2, 4):
        recorder, module = run(StableDRL(), accumulate)
        masks = [
            module.likelihood.corrupt(batch["rollouts"].sequences, update=batch["update"]).masked
            for batch in recorder.batches
        ]
        seen[accumulate] = list(torch.cat(masks).split(8))
    assert same(seen[1], seen[2])
    assert same(seen[1], seen[4])
    assert not torch.equal(seen[1][0], seen[1][1])  # another update draws other masks


def test_normalizer_is_given_only_where_groups_are_split() -> None:
    given = {n: {b["group_log_normalizer"] is not None for b in run(StableDRL(), n)[0].batches} for n in (1, 2, 4)}
    assert given == {1: {False}, 2: {False}, 4: {True}}
    assert {b["group_log_normalizer"] for b in run(GRPO(), 4)[0].batches} == {None}


@pytest.mark.parametrize("updates", [1, 2, 3, 4])
def test_a_rollout_serves_its_updates(updates: int) -> None:
    recorder, _ = run(GRPO(), 1, updates=updates)
    numbers = [(int(batch["rollout_index"]), batch["update"], batch["step"]) for batch in recorder.batches]
    assert numbers == [(step // updates, step % updates, step) for step in range(2 * updates)]
    assert [("samples" in batch, bool(batch["metrics"])) for batch in recorder.batches] == [
        (step % updates == 0,) * 2 for step in range(2 * updates)
    ]
    completions = [batch["rollouts"].sequences.token_ids for batch in recorder.batches]
    assert all(torch.equal(completions[step], completions[step - step % updates]) for step in range(2 * updates))
    assert not torch.equal(completions[0], completions[-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 1}, "group_size 1 must be at least 2"),
        ({"temperature": 0.0}, "temperature 0.0 must be finite and above 0"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": float("inf")}, "temperature inf"),
        ({"updates_per_rollout": 0}, "updates_per_rollout 0 must be at least 1"),
        ({"rows_per_forward": 0}, "rows_per_forward 0 must be at least 1"),
        ({"max_ungraded_share": 1.5}, "max_ungraded_share 1.5 must lie between 0 and 1"),
        ({"max_ungraded_share": float("nan")}, "max_ungraded_share nan"),
        ({"baseline": "median"}, "center, standardize, leave_one_out"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        GroupRollout(**options)


def test_accumulation_that_does_not_divide_the_completions_names_the_valid_values() -> None:
    with pytest.raises(UserInputError, match="accumulate_grad_batches 3 does not divide.* 8 .*valid: 1, 2, 4, 8"):
        train(tiny_module(), accumulate=3)


@pytest.mark.parametrize("data", [{"updates_per_rollout": 3}, {"micro_batches": 1}])
def test_slots_that_do_not_match_are_refused(data: dict[str, int]) -> None:
    with pytest.raises(UserInputError, match="updates_per_rollout 2 x accumulate_grad_batches 2 needs 4"):
        train(tiny_module(), accumulate=2, data=data)


def test_another_module_is_refused() -> None:
    with pytest.raises(UserInputError, match="needs a DiffusionPolicyModule, not a DemoModel"):
        train(DemoModel())  # type: ignore[arg-type]


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
        with pytest.raises(UserInputError, match="25% .* no finite reward, more than max_ungraded_share 20%"):
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


def test_distinct_completions_are_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    train(tiny_module(), steps=2)
    assert not [record for record in caplog.records if record.name == "stabledrl"]


def test_a_completion_of_the_end_token_alone_is_trained_on() -> None:
    recorder, module = Recorder(), tiny_module(sampler=Fixed(0, 5, 5, 5), kl_coefficient=0.1)
    train(module, recorder, steps=2, tasks=[Digits(Scripted(level(0.0)))])
    assert recorder.batches[0]["rollouts"].sequences.lengths.tolist() == [1] * 8
    assert all(torch.isfinite(value).all() for value in weights(module).values())
    assert all(gradient.isfinite().all() for gradients in recorder.gradients for gradient in gradients)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_rollout_metrics_are_logged_at_the_first_step_of_a_rollout_and_not_repeated(
    tmp_path: Path, accumulate: int
) -> None:
    train(tiny_module(), steps=6, updates=3, accumulate=accumulate, log_to=tmp_path)
    found = events(tmp_path)
    names = [name for name in found if name.startswith("rollout/")]
    assert len(names) == 8
    assert all({step: len(values) for step, values in found[name].items()} == {0: 1, 3: 1} for name in names)
    assert list(found["train/loss"]) == list(range(6))


def test_rollout_metrics_are_logged_whatever_log_every_n_steps_is(tmp_path: Path) -> None:
    train(tiny_module(), steps=4, updates=1, log_to=tmp_path, log_every_n_steps=50)
    assert list(events(tmp_path)["rollout/reward_mean"]) == [0, 1, 2, 3]


def test_rollback_count_changes_the_draws() -> None:
    completions = []
    for count in (0, 0, 1):
        rollout, recorder = GroupRollout(group_size=4, updates_per_rollout=1, seed=0), Recorder()
        rollout.rollback_count = count
        train(tiny_module(), recorder, steps=1, rollout=rollout)
        completions.append(recorder.batches[0]["rollouts"].sequences.completion_ids)
    assert torch.equal(completions[0], completions[1])
    assert not torch.equal(completions[0], completions[2])


def checkpointed(directory: Path, steps: int, accumulate: int, resume: Path | None = None, **options: Any) -> Any:
    """A run of 3 updates a rollout that leaves last.ckpt; returns that checkpoint."""
    module = tiny_module(kl_coefficient=0.1, lr_scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9))
    train(
        module,
        RunCheckpoint(dirpath=str(directory), every_n_train_steps=50),
        steps=steps,
        updates=3,
        accumulate=accumulate,
        ckpt_path=resume,
        **options,
    )
    return torch.load(directory / "last.ckpt", weights_only=True)


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_resumed_equals_uninterrupted(tmp_path: Path, accumulate: int) -> None:
    whole = checkpointed(tmp_path / "whole", 12, accumulate)
    checkpointed(tmp_path / "a", 7, accumulate)
    checkpointed(tmp_path / "b", 8, accumulate, tmp_path / "a" / "last.ckpt")  # 7 and 8: inside a rollout's updates
    twice = checkpointed(tmp_path / "c", 12, accumulate, tmp_path / "b" / "last.ckpt")
    once = checkpointed(tmp_path / "d", 12, accumulate, tmp_path / "a" / "last.ckpt")
    for resumed in (once, twice):
        for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
            assert same(whole[key], resumed[key]), key
        assert resumed_rollout(resumed) == resumed_rollout(whole)
        assert same(*(without_time(checkpoint["callbacks"]["GroupRollout"]) for checkpoint in (whole, resumed)))


def resumed_rollout(checkpoint: dict[str, Any]) -> int:
    return int(checkpoint["callbacks"]["GroupRollout"]["rollout_index"])


def without_time(state: dict[str, Any]) -> dict[str, Any]:
    metrics = {name: value for name, value in state["metrics"].items() if name != "rollout/tokens_per_second"}
    return {**state, "metrics": metrics}


def test_another_seed_is_refused_on_resume(tmp_path: Path) -> None:
    checkpointed(tmp_path, 2, 1)
    rollout = GroupRollout(group_size=4, updates_per_rollout=3, seed=1)
    with pytest.raises(UserInputError, match="seed 1 differs from the checkpoint's 0"):
        train(tiny_module(), rollout=rollout, ckpt_path=tmp_path / "last.ckpt", steps=4)


def test_a_checkpoint_without_the_rollout_is_refused_inside_a_rollout(tmp_path: Path) -> None:
    checkpoint = checkpointed(tmp_path, 2, 1)
    del checkpoint["callbacks"]["GroupRollout"]
    torch.save(checkpoint, tmp_path / "cut.ckpt")
    module = tiny_module(kl_coefficient=0.1, lr_scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9))
    with pytest.raises(UserInputError, match="update 2 of rollout 0 is due"):
        train(module, steps=4, updates=3, ckpt_path=tmp_path / "cut.ckpt")
