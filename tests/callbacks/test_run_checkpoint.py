"""RunCheckpoint and GracefulStop: whatever ends the run, its last step can be resumed."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import Once, same, scale_gradient, tiny_module, train, weights

from stabledrl.callbacks import (
    GracefulStop,
    GradientSpikeMonitor,
    PolicyDriftMonitor,
    RewardCollapseMonitor,
    RunCheckpoint,
    SampleTable,
    TaskEvaluation,
)

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def saved(path: Path) -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
    return checkpoint


def send(number: int, *at: int) -> Once:
    return Once(lambda trainer, module: os.kill(os.getpid(), number), *at)


@pytest.mark.parametrize(("every", "steps"), [(2, 5), (2, 4), (100, 3), (1, 2)])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_last_is_the_end_of_the_run(tmp_path: Path, every: int, steps: int, accumulate: int) -> None:
    module = tiny_module()
    checkpoint = RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=every)
    train(module, checkpoint, steps=steps, accumulate=accumulate)
    last = saved(tmp_path / "last.ckpt")
    assert last["global_step"] == steps
    assert same(last["state_dict"], weights(module))


@pytest.mark.parametrize(
    ("keep", "expected"), [(1, ["step-000004.ckpt"]), (-1, ["step-000002.ckpt", "step-000004.ckpt"]), (0, [])]
)
def test_keeps_as_many_as_asked_for(tmp_path: Path, keep: int, expected: list[str]) -> None:
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=2, save_top_k=keep), steps=5)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == sorted([*expected, "last.ckpt"])


def test_keeps_the_best_by_the_monitored_metric(tmp_path: Path) -> None:
    checkpoint = RunCheckpoint(
        dirpath=str(tmp_path), every_n_train_steps=1, monitor="rollout/reward_mean", save_top_k=1
    )
    train(tiny_module(), checkpoint, steps=6, updates=1)
    assert len(list(tmp_path.glob("step-*.ckpt"))) == 1
    assert saved(tmp_path / "last.ckpt")["global_step"] == 6


def test_weights_only_leaves_out_the_rest(tmp_path: Path) -> None:
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path), save_weights_only=True), steps=1)
    checkpoint = saved(tmp_path / "last.ckpt")
    assert "state_dict" in checkpoint
    assert "policy" in checkpoint
    assert not {"optimizer_states", "lr_schedulers", "callbacks"} & checkpoint.keys()


def test_a_run_resumes_with_another_interval(tmp_path: Path) -> None:
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=2), steps=2)
    again = RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=3)
    train(tiny_module(), again, steps=4, ckpt_path=tmp_path / "last.ckpt")
    assert saved(tmp_path / "last.ckpt")["global_step"] == 4


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(
    tmp_path: Path, number: signal.Signals, accumulate: int
) -> None:
    before = [signal.getsignal(own) for own in SIGNALS]
    stop, module = GracefulStop(), tiny_module()
    trainer = train(
        module, send(number, 2), stop, RunCheckpoint(dirpath=str(tmp_path)), steps=9, updates=2, accumulate=accumulate
    )
    assert stop.signal_received == number
    assert trainer.global_step == 3
    last = saved(tmp_path / "last.ckpt")
    assert last["global_step"] == 3
    assert same(last["state_dict"], weights(module))
    assert [signal.getsignal(own) for own in SIGNALS] == before


class InFirstMicroBatch(Once):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 4:
            self.act(trainer, pl_module)


def test_a_signal_between_micro_batches_waits_for_the_update(tmp_path: Path) -> None:
    interrupt = InFirstMicroBatch(lambda trainer, module: os.kill(os.getpid(), signal.SIGINT))
    trainer = train(
        tiny_module(), interrupt, GracefulStop(), RunCheckpoint(dirpath=str(tmp_path)), steps=9, accumulate=4
    )
    assert trainer.global_step == 2  # batch 4 is the first of the second update
    assert saved(tmp_path / "last.ckpt")["global_step"] == 2


def test_an_interrupted_and_resumed_run_equals_the_uninterrupted_one(tmp_path: Path) -> None:
    whole, resumed = tiny_module(), tiny_module()
    train(whole, steps=6, updates=3)
    train(
        tiny_module(), send(signal.SIGTERM, 3), GracefulStop(), RunCheckpoint(dirpath=str(tmp_path)), steps=6, updates=3
    )
    train(resumed, GracefulStop(), steps=6, updates=3, ckpt_path=tmp_path / "last.ckpt")
    assert same(weights(whole), weights(resumed))


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    before = [signal.getsignal(own) for own in SIGNALS]

    def twice(trainer: Any, module: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        train(tiny_module(), Once(twice, 1), GracefulStop(), RunCheckpoint(dirpath=str(tmp_path)), steps=9)
    assert not (tmp_path / "last.ckpt").exists()
    signal.signal(signal.SIGINT, before[0])
    assert signal.getsignal(signal.SIGTERM) == before[1]


def test_a_second_termination_has_the_system_default(tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(trainer: Any, module: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        seen.append(signal.getsignal(signal.SIGTERM))

    train(tiny_module(), Once(look, 0), GracefulStop(), steps=2)
    assert seen == [signal.SIG_DFL]


def test_handlers_come_back_after_an_error() -> None:
    before = [signal.getsignal(own) for own in SIGNALS]
    with pytest.raises(FloatingPointError):
        train(tiny_module(), GracefulStop(), Once(scale_gradient(float("nan")), 0), steps=2)
    assert [signal.getsignal(own) for own in SIGNALS] == before


def test_a_second_fit_is_not_stopped_by_the_firsts_signal() -> None:
    stop = GracefulStop()
    train(tiny_module(), send(signal.SIGINT, 0), stop, steps=3)
    assert train(tiny_module(), stop, steps=3).global_step == 3


def test_training_works_outside_the_main_thread() -> None:
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(train(tiny_module(), GracefulStop(), steps=1).global_step))
    thread.start()
    thread.join()
    assert done == [1]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_callbacks_state_after_a_resume_is_the_uninterrupted_runs(tmp_path: Path, accumulate: int) -> None:
    def part(name: str, steps: int, resume: str | None = None) -> dict[str, Any]:
        callbacks = [
            TaskEvaluation(every_n_steps=5),
            GradientSpikeMonitor(),
            RewardCollapseMonitor(window=2),
            PolicyDriftMonitor(),
            SampleTable(),
            GracefulStop(),
            RunCheckpoint(dirpath=str(tmp_path / name)),
        ]
        path = None if resume is None else tmp_path / resume / "last.ckpt"
        options: dict[str, Any] = {"accumulate": accumulate, "ckpt_path": path, "default_root_dir": tmp_path}
        train(tiny_module(), *callbacks, steps=steps, updates=3, **options)
        states: dict[str, Any] = saved(tmp_path / name / "last.ckpt")["callbacks"]
        states["GroupRollout"]["metrics"].pop("rollout/tokens_per_second")
        del states["RunCheckpoint"]  # names the directories
        return states

    whole = part("whole", 12)
    part("a", 5)  # a step of the interval, which the interrupted run evaluates as its last
    part("b", 8, "a")
    resumed = part("c", 12, "b")
    assert (
        whole.keys()
        == resumed.keys()
        == {
            "GroupRollout",
            "TaskEvaluation",
            "GradientSpikeMonitor",
            "RewardCollapseMonitor",
            "PolicyDriftMonitor",
            "SampleTable",
        }
    )
    for name in whole:
        assert same(whole[name], resumed[name]), name
