"""Evaluates on held-out prompts while training."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from stabledrl.callbacks.graceful_stop import stop_requested
from stabledrl.callbacks.log_once import keep_for_monitors, log_once
from stabledrl.errors import UserInputError
from stabledrl.evaluation import TaskScores
from stabledrl.module import DiffusionPolicyModule


class TaskEvaluation(Callback):
    """Logs greedy accuracy on held-out prompts as `val/<task>/accuracy`: at the start, at intervals and at the end.

    A run that a signal ends (`GracefulStop`) is not evaluated any more. Lightning's own validation loop counts batches,
    not optimizer steps, and does not log its first pass.

    Args:
        every_n_steps: Optimizer steps between evaluations; None evaluates at the start and the end only.
        at_start: Evaluate before the first step.

    Raises:
        UserInputError: `every_n_steps` is below 1.

    Example:
        >>> evaluation = TaskEvaluation(every_n_steps=50)
    """

    requires_rollouts = True

    def __init__(self, every_n_steps: int | None = None, at_start: bool = True) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise UserInputError(f"every_n_steps {every_n_steps} must be at least 1, or null for start and end only")
        self.every_n_steps = every_n_steps
        self.at_start = at_start
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self._last_step = -1
        self._limit_val_batches: int | float | None = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            # This callback evaluates in the place of Lightning's own loop.
            self._limit_val_batches, trainer.limit_val_batches = trainer.limit_val_batches, 0

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and self._limit_val_batches is not None:
            trainer.limit_val_batches = self._limit_val_batches

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        keep_for_monitors(trainer, self.last)
        if self.at_start and trainer.global_step == 0:
            self.first = self._evaluate(trainer, pl_module)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        # The last step is left to on_train_end; micro-batches share a step.
        due = (
            self.every_n_steps
            and step % self.every_n_steps == 0
            and max(self._last_step, 0) < step != trainer.max_steps
        )
        if due and not stop_requested(trainer):
            self._evaluate(trainer, pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if stop_requested(trainer):
            return
        if self._last_step < trainer.global_step:
            self._evaluate(trainer, pl_module)
        for name, value in self.last.items():
            before = f" (before training {self.first[name]:.3f})" if name in self.first else ""
            rank_zero_info(f"{name} {value:.3f}{before}")

    @torch.no_grad()
    def _evaluate(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        assert isinstance(pl_module, DiffusionPolicyModule)
        scores = TaskScores(pl_module.tasks)
        with trainer.precision_plugin.forward_context():
            for batch in trainer.datamodule.evaluation_dataloader():  # type: ignore[attr-defined]
                scores.update(pl_module.evaluate_batch(trainer.strategy.batch_to_device(batch)).samples)
        self.last = scores.compute("val")
        self._last_step = trainer.global_step
        log_once(trainer, self.last, trainer.global_step)
        return self.last

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first, "last": self.last, "last_step": self._last_step}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.first, self.last, self._last_step = state_dict["first"], state_dict["last"], state_dict["last_step"]
