"""Signals end a run between two steps, where a checkpoint is a whole state."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from stabledrl.callbacks.alarm import alarm

Handler = Callable[[int, FrameType | None], Any] | int | None


class GracefulStop(Callback):
    """On SIGINT or SIGTERM, ends the run after the step under way, with a checkpoint and without a last evaluation.

    A second signal acts as if nothing listened.

    Under Slurm the signal of Lightning's `SLURMEnvironment` (SIGUSR1, sent by `#SBATCH --signal=SIGUSR1@90`) ends the
    run likewise, after Lightning has saved `hpc_ckpt_<n>.ckpt` in the trainer's root directory and asked Slurm to run
    the job again, which then resumes from it. Lightning alone would save in the middle of a step.

    `signal_received` is the signal's number, None if none came.
    """

    def __init__(self) -> None:
        self.signal_received: int | None = None
        self._previous: dict[int, Handler] = {}
        self._requeue_signal: int | None = None
        self._requeue: Handler = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.signal_received = self._requeue_signal = None
        # Only the main thread may set handlers. Looked up before Lightning sets its own, which would come back.
        if stage == "fit" and threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            requeue = _requeue_signal(trainer)
            if requeue is not None and signal.getsignal(requeue) == signal.SIG_DFL:  # as Lightning: not the user's own
                self._requeue_signal = requeue
                self._previous[requeue] = signal.SIG_DFL

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._requeue_signal is not None:
            self._requeue = signal.getsignal(self._requeue_signal)
        for number in self._previous:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.signal_received = number
        name = signal.Signals(number).name
        if number == self._requeue_signal:
            # Slurm's next one, to a job that it runs again.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            alarm(f"{name}: ending after this step, with a checkpoint, and asking Slurm to run the job again")
            return
        # Not the handlers before ours: Lightning's own would wait for the end of the step, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        alarm(f"{name}: ending after this step, with a checkpoint; again to end at once")

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous.clear()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Every rank looks at the same moment, between two optimizer steps, where a checkpoint is a whole state.
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0 and stop_requested(trainer):
            requeue = self._requeue_signal is not None and self.signal_received == self._requeue_signal
            if trainer.strategy.reduce_boolean_decision(requeue, all=False) and callable(self._requeue):
                self._requeue(self._requeue_signal or 0, None)
            trainer.should_stop = True

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._restore()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._restore()


def stop_requested(trainer: Trainer) -> bool:
    """Whether a signal reached the `GracefulStop` of any process; all processes must ask together."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    received = any(isinstance(own, GracefulStop) and own.signal_received is not None for own in callbacks)
    return trainer.strategy.reduce_boolean_decision(received, all=False)


def _requeue_signal(trainer: Trainer) -> int | None:
    """The signal on which Lightning asks Slurm to run the job again; None where it does not."""
    environment = trainer._accelerator_connector.cluster_environment
    if not isinstance(environment, SLURMEnvironment) or not environment.auto_requeue:
        return None
    return environment.requeue_signal
