"""GracefulStop: a signal ends a run between two steps, with a checkpoint; Slurm is asked to run it again."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import Once, same, scale_gradient, tiny_module, train, weights

from stabledrl.callbacks import GracefulStop, RunCheckpoint

SIGNALS = [signal.SIGINT, signal.SIGTERM]


def saved(path: Path) -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
    return checkpoint


def send(number: int, *at: int) -> Once:
    return Once(lambda trainer, module: os.kill(os.getpid(), number), *at)


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


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As within `srun`; the file that `scontrol` writes what it was asked for to."""
    asked = tmp_path / "asked"
    (tmp_path / "bin").mkdir()
    for name, line in (("scontrol", f'echo "$@" >> {asked}'), ("srun", "true")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name, value in {
        "JOB_ID": 4711, "JOB_NAME": "train", "NTASKS": 1, "NTASKS_PER_NODE": 1, "NNODES": 1, "PROCID": 0,
        "LOCALID": 0, "NODEID": 0, "NODELIST": "127.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    return asked


@pytest.mark.parametrize("accumulate", [1, 2])
def test_slurms_signal_saves_after_the_step_and_has_the_job_run_again_from_there(
    slurm: Path, tmp_path: Path, accumulate: int
) -> None:
    whole, resumed = tiny_module(), tiny_module()
    options: dict[str, Any] = {"updates": 3, "accumulate": accumulate}
    train(whole, steps=6, **options)
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGUSR1)}
    root, stop = tmp_path / "root", GracefulStop()
    checkpoint = RunCheckpoint(dirpath=str(tmp_path / "checkpoints"))
    trainer = train(tiny_module(), send(signal.SIGUSR1, 3), stop, checkpoint, steps=6, default_root_dir=root, **options)
    assert trainer.global_step == 4
    assert stop.signal_received == signal.SIGUSR1
    assert slurm.read_text() == "requeue 4711\n"
    assert {number: signal.getsignal(number) for number in before} == before
    states = [saved(path) for path in (root / "hpc_ckpt_1.ckpt", tmp_path / "checkpoints" / "last.ckpt")]
    assert [state["global_step"] for state in states] == [4, 4]
    assert same(states[0]["state_dict"], states[1]["state_dict"])
    # The same command again, with nothing said of a checkpoint.
    again = train(resumed, GracefulStop(), steps=6, default_root_dir=root, **options)
    assert again.global_step == 6
    assert same(weights(whole), weights(resumed))


def test_slurms_termination_after_its_signal_does_not_end_the_run_before_it_is_saved(
    slurm: Path, tmp_path: Path
) -> None:
    def both(trainer: Any, module: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)

    train(tiny_module(), Once(both, 1), GracefulStop(), RunCheckpoint(dirpath=str(tmp_path)), steps=6,
          default_root_dir=tmp_path)  # fmt: skip
    assert saved(tmp_path / "last.ckpt")["global_step"] == 2
    assert slurm.read_text() == "requeue 4711\n"


def test_a_handler_of_the_users_own_is_left_alone(slurm: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        trainer = train(tiny_module(), send(signal.SIGUSR1, 1), GracefulStop(), steps=3, default_root_dir=tmp_path)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (trainer.global_step, seen) == (3, [signal.SIGUSR1])
    assert not slurm.exists()


def test_under_slurm_the_other_signals_end_the_run_without_running_it_again(slurm: Path, tmp_path: Path) -> None:
    trainer = train(
        tiny_module(), send(signal.SIGTERM, 1), GracefulStop(), RunCheckpoint(dirpath=str(tmp_path)), steps=6,
        default_root_dir=tmp_path,
    )  # fmt: skip
    assert trainer.global_step == 2
    assert saved(tmp_path / "last.ckpt")["global_step"] == 2
    assert not slurm.exists()
