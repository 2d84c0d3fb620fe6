"""RewardCollapseMonitor: three signs of collapse, three answers, and a way back that is exact."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from tests.training import Digits, Fixed, Scripted, events, level, same, tiny_module, train

from stabledrl.callbacks import GroupRollout, RewardCollapseMonitor, RunCheckpoint, TrainingStoppedError
from stabledrl.errors import UserInputError


def scripted(*means: float) -> list[Digits]:
    return [Digits(Scripted(*(level(mean) for mean in means)))]


def schedule(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)


class Spy(RewardCollapseMonitor):
    """Keeps weights, optimizer state and learning rate as they are after every rollback."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.after: list[tuple[Any, Any, float]] = []

    def _roll_back(self, trainer: Trainer, message: str) -> None:
        super()._roll_back(trainer, message)
        optimizer = trainer.optimizers[0]
        state = {name: value.clone() for name, value in trainer.lightning_module.state_dict().items()}
        moments = torch.utils._pytree.tree_map(
            lambda value: value.clone() if isinstance(value, torch.Tensor) else value, optimizer.state_dict()["state"]
        )
        self.after.append((state, moments, optimizer.param_groups[0]["lr"]))


def run(monitor: RewardCollapseMonitor, *means: float, directory: Path, **options: Any) -> Trainer:
    checkpoint = RunCheckpoint(dirpath=str(directory / "checkpoints"))
    options = {"updates": 1, "steps": len(means), **options}
    module = options.pop("module", None) or tiny_module(lr_scheduler=schedule)
    return train(module, monitor, checkpoint, tasks=scripted(*means), default_root_dir=directory, **options)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "stabledrl"]


def test_a_fall_from_the_best_running_mean_is_told_once_until_healthy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = RewardCollapseMonitor(window=2, max_drop=0.3)
    run(monitor, 0.2, 0.8, 0.8, 0.2, 0.2, 0.2, 0.9, 0.9, 0.1, directory=tmp_path)
    assert monitor.best == pytest.approx(0.9)
    first, second = told(caplog)
    assert "step 4: reward collapse, the reward's running mean fell from 0.800 to 0.500" in first
    assert "step 9: reward collapse, the reward's running mean fell from 0.900 to 0.500" in second
    assert monitor.alarms == 2


@pytest.mark.parametrize(("low", "alarms"), [(0.52, 0), (0.48, 1)])
def test_the_limit_is_max_drop(tmp_path: Path, low: float, alarms: int) -> None:
    monitor = RewardCollapseMonitor(window=1, max_drop=0.3)
    run(monitor, 0.8, low, directory=tmp_path)
    assert monitor.alarms == alarms


def test_nothing_is_judged_before_the_window_is_full(tmp_path: Path) -> None:
    monitor = RewardCollapseMonitor(window=5, max_drop=0.1)
    run(monitor, 0.9, 0.9, 0.1, 0.1, directory=tmp_path)
    assert (monitor.alarms, monitor.best, monitor.symptom()) == (0, None, None)


def test_a_rollout_without_rewards_does_not_blind_the_monitor(tmp_path: Path) -> None:
    monitor = RewardCollapseMonitor(window=1, max_drop=0.3)
    script = Scripted(lambda count: [None] * count, level(0.8), lambda count: [None] * count, level(0.2))
    rollout = GroupRollout(group_size=4, updates_per_rollout=1, max_ungraded_share=1.0, seed=0)
    train(tiny_module(), monitor, steps=4, rollout=rollout, tasks=[Digits(script)])
    assert (monitor.best, monitor.alarms) == (pytest.approx(0.8), 1)


@pytest.mark.parametrize(("limit", "alarms"), [(0.9, 1), (1.0, 0)])
def test_flat_groups_are_a_collapse(caplog: pytest.LogCaptureFixture, limit: float, alarms: int) -> None:
    monitor = RewardCollapseMonitor(window=2, max_flat_share=limit)
    train(tiny_module(), monitor, updates=1, steps=3, tasks=[Digits(Scripted(lambda count: [0.5] * count))])
    assert monitor.alarms == alarms
    assert sum("100% of the groups have no reward variance" in message for message in told(caplog)) == alarms


@pytest.mark.parametrize(("limit", "alarms"), [(0.9, 1), (1.0, 0)])
def test_identical_completions_are_a_collapse(caplog: pytest.LogCaptureFixture, limit: float, alarms: int) -> None:
    monitor = RewardCollapseMonitor(window=2, max_identical_share=limit)
    train(tiny_module(sampler=Fixed(3, 4)), monitor, updates=1, steps=3, tasks=scripted(0.5))
    assert monitor.alarms == alarms
    assert sum("100% of the groups repeat one completion" in message for message in told(caplog)) == alarms


def test_stop_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    monitor = RewardCollapseMonitor(window=1, max_drop=0.3, action="stop")
    with pytest.raises(TrainingStoppedError, match="step 3: reward collapse, the reward's running mean fell"):
        run(monitor, 0.8, 0.8, 0.2, 0.2, directory=tmp_path)


def rollback(**options: Any) -> Spy:
    return Spy(**{"window": 2, "max_drop": 0.3, "action": "rollback", "save_every_n_rollouts": 1, **options})


def test_rollback_returns_to_the_last_healthy_state_bitwise(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor, module = rollback(), tiny_module(lr_scheduler=schedule)
    trainer = run(monitor, 0.8, 0.8, 0.8, 0.8, 0.1, directory=tmp_path, module=module)
    healthy = torch.load(tmp_path / "checkpoints" / "healthy.ckpt", weights_only=True)
    assert healthy["global_step"] == 4
    state, moments, rate = monitor.after[0]
    assert same(state, healthy["state_dict"])
    assert same(moments, healthy["optimizer_states"][0]["state"])
    assert rate == pytest.approx(1e-2 * 0.9**5)  # the schedule goes on, as do the steps
    assert healthy["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(1e-2 * 0.9**4)
    assert trainer.global_step == 5
    assert "back to the weights of step 4 (rollback 1)" in told(caplog)[-1]


def test_rollback_waits_for_the_last_update_of_a_rollout(tmp_path: Path) -> None:
    for steps, rollbacks in ((5, 0), (6, 1)):
        monitor = rollback(window=1)
        run(monitor, 0.8, 0.1, directory=tmp_path, updates=3, steps=steps, accumulate=2)
        assert monitor.rollbacks == rollbacks


def test_rollback_changes_the_draws_that_follow(tmp_path: Path) -> None:
    monitor = rollback()
    trainer = run(monitor, 0.8, 0.8, 0.1, directory=tmp_path)
    path = tmp_path / "checkpoints" / "last.ckpt"
    resumed = run(rollback(), 0.8, directory=tmp_path, steps=4, ckpt_path=path)
    for own in (trainer, resumed):
        assert [cb.rollback_count for cb in own.callbacks if isinstance(cb, GroupRollout)] == [1]  # type: ignore[attr-defined]


def test_a_state_is_not_kept_as_healthy_before_it_is_judged(tmp_path: Path) -> None:
    monitor = rollback(window=3)
    run(
        monitor, 0.8, 0.8, 0.8, 0.1, 0.1, 0.1, directory=tmp_path
    )  # back after 4 or 5; two rollouts do not fill the window
    assert monitor.rollbacks == 1
    assert torch.load(tmp_path / "checkpoints" / "healthy.ckpt", weights_only=True)["global_step"] == 3


def test_a_fall_that_has_begun_is_not_kept_as_healthy(tmp_path: Path) -> None:
    monitor = rollback(window=1)
    run(monitor, 0.8, 0.6, 0.55, directory=tmp_path)
    assert monitor.rollbacks == 0
    assert torch.load(tmp_path / "checkpoints" / "healthy.ckpt", weights_only=True)["global_step"] == 1


def test_the_best_mean_outlives_a_rollback(tmp_path: Path) -> None:
    monitor = rollback(window=1, max_rollbacks=2)
    with pytest.raises(TrainingStoppedError, match=r"fell from 0.800 to 0.300; stopped after 2 rollbacks"):
        run(monitor, 0.8, 0.45, 0.4, 0.3, 0.2, directory=tmp_path)
    assert monitor.best == pytest.approx(0.8)


def test_a_collapse_before_any_healthy_state_stops_and_takes_no_other_runs_state(tmp_path: Path) -> None:
    run(rollback(window=1), 0.8, 0.8, directory=tmp_path)
    assert (tmp_path / "checkpoints" / "healthy.ckpt").exists()
    monitor = rollback(window=1, save_every_n_rollouts=100)
    with pytest.raises(TrainingStoppedError, match="before a healthy state could be kept"):
        run(monitor, 0.8, 0.1, directory=tmp_path)


def test_a_healthy_state_that_is_gone_stops_the_run(tmp_path: Path) -> None:
    monitor = rollback(window=1)
    run(monitor, 0.8, directory=tmp_path)
    (tmp_path / "checkpoints" / "healthy.ckpt").unlink()
    resumed = rollback(window=1)
    with pytest.raises(TrainingStoppedError, match=r"healthy.ckpt' is gone"):
        run(resumed, 0.1, directory=tmp_path, steps=2, ckpt_path=tmp_path / "checkpoints" / "last.ckpt")


def test_rollback_works_right_after_a_resume_into_another_directory(tmp_path: Path) -> None:
    run(rollback(), 0.8, 0.8, 0.8, directory=tmp_path / "first")
    monitor = rollback()
    path = tmp_path / "first" / "checkpoints" / "last.ckpt"
    run(monitor, 0.1, directory=tmp_path / "second", steps=4, ckpt_path=path)
    healthy = torch.load(tmp_path / "first" / "checkpoints" / "healthy.ckpt", weights_only=True)
    assert monitor.rollbacks == 1
    assert same(monitor.after[0][0], healthy["state_dict"])


def test_state_survives_a_resume(tmp_path: Path) -> None:
    means = [0.5, 0.8, 0.8, 0.8, 0.3, 0.2, 0.8, 0.8]

    def part(name: str, first: int, last: int, resume: Path | None = None, **options: Any) -> dict[str, Any]:
        monitor = rollback(**options)
        run(monitor, *means[first:last], directory=tmp_path / name, steps=last, ckpt_path=resume)
        return {key: value for key, value in monitor.state_dict().items() if key != "healthy"}

    whole = part("whole", 0, 8)
    assert whole["rollbacks"] == 1
    part("a", 0, 5)
    assert part("b", 5, 8, tmp_path / "a" / "checkpoints" / "last.ckpt") == whole


def test_counts_and_running_mean_are_logged_with_their_rollout(tmp_path: Path) -> None:
    monitor = RewardCollapseMonitor(window=2, max_drop=0.3)
    run(monitor, 0.8, 0.6, 0.1, directory=tmp_path, updates=2, steps=6, log_to=tmp_path / "logs")
    found = events(tmp_path / "logs")
    running = {step: values[0] for step, values in found["train/reward_running_mean"].items()}
    assert running == {0: pytest.approx(0.8), 2: pytest.approx(0.7), 4: pytest.approx(0.35)}
    assert found["train/collapse_alarms"] == {1: [0.0], 3: [0.0], 5: [1.0]}
    assert found["train/rollbacks"] == {1: [0.0], 3: [0.0], 5: [0.0]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window 0 must be at least 1"),
        ({"max_rollbacks": 0}, "max_rollbacks 0 must be at least 1"),
        ({"save_every_n_rollouts": 0}, "save_every_n_rollouts 0 must be at least 1"),
        ({"max_drop": 0.0}, "max_drop 0.0 must be above 0"),
        ({"max_drop": float("nan")}, "max_drop nan"),
        ({"max_flat_share": 0.0}, "max_flat_share 0.0 must lie above 0"),
        ({"max_identical_share": 1.1}, "max_identical_share 1.1 must lie above 0"),
        ({"action": "pause"}, "warn, stop, rollback"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        RewardCollapseMonitor(**options)
