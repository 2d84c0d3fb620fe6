"""Checkpoints at intervals and at the end, whatever ends the run."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from typing_extensions import override

from stabledrl.callbacks.alarm import alarm

Handler = Callable[[int, FrameType | None], Any] | int | None


class RunCheckpoint(ModelCheckpoint):
    """Lightning's `ModelCheckpoint` that also saves after the last step, so that `last.ckpt` is the run's end.

    Args:
        dirpath: Directory of the checkpoints; the command line fills it in.
        every_n_train_steps: Optimizer steps between checkpoints.
        save_top_k: How many to keep; -1 keeps all.
        monitor: Metric that decides which to keep; None keeps the newest.
        mode: Whether `min` or `max` of the monitored metric is best.
        save_weights_only: Leave out optimizer, loop and callback states: such a checkpoint cannot be resumed.

    Example:
        >>> checkpoint = RunCheckpoint(dirpath="checkpoints/run", every_n_train_steps=100)
    """

    def __init__(
        self,
        dirpath: str | None = None,
        every_n_train_steps: int = 100,
        save_top_k: int = 1,
        monitor: str | None = None,
        mode: str = "max",
        save_weights_only: bool = False,
    ) -> None:
        super().__init__(
            dirpath=dirpath,
            filename="step-{step:06d}",
            auto_insert_metric_name=False,
            every_n_train_steps=every_n_train_steps,
            save_top_k=save_top_k,
            monitor=monitor,
            mode=mode,
            save_last=True,
            save_weights_only=save_weights_only,
            save_on_train_epoch_end=False,
        )

    @property
    @override
    def state_key(self) -> str:
        """The class alone, so that a run resumes with other intervals too."""
        return type(self).__name__

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        if self._last_global_step_saved != trainer.global_step:
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))


class GracefulStop(Callback):
    """On SIGINT or SIGTERM, ends the run after the step under way, with a checkpoint and without a last evaluation.

    A second signal acts as if nothing listened. `signal_received` is the signal's number, None if none came.
    """

    def __init__(self) -> None:
        self.signal_received: int | None = None
        self._previous: dict[int, Handler] = {}

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.signal_received = None
        # Only the main thread may set handlers. Looked up before Lightning sets its own, which would come back.
        if stage == "fit" and threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for number in self._previous:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.signal_received = number
        # Not the handlers before ours: Lightning's own would wait for the end of the step, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        alarm(f"{signal.Signals(number).name}: ending after this step, with a checkpoint; again to end at once")

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous.clear()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Every rank looks at the same moment, between two optimizer steps, where a checkpoint is a whole state.
        if stop_requested(trainer) and (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
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
