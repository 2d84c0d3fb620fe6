"""Evaluates on held-out prompts while training."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.evaluation import TaskScores
from stabledrl.module import DiffusionPolicyModule


class TaskEvaluation(Callback):
    """Logs greedy accuracy on held-out prompts as `val/<task>/accuracy`: before the first step, at intervals, at the end.

    Lightning's own validation loop counts batches, not optimizer steps, and does not log its first pass.

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

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            # This callback evaluates in the place of Lightning's own loop.
            trainer.limit_val_batches = 0

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.at_start and trainer.global_step == 0:
            self.first = self._evaluate(trainer, pl_module)

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        # The last step is left to on_train_end; micro-batches share a step.
        if self.every_n_steps and step % self.every_n_steps == 0 and self._last_step < step != trainer.max_steps:
            self._evaluate(trainer, pl_module)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._last_step < trainer.global_step and not trainer.received_sigterm:
            self._evaluate(trainer, pl_module)
        for name, value in self.last.items():
            before = f" (before training {self.first[name]:.3f})" if name in self.first else ""
            rank_zero_info(f"{name} {value:.3f}{before}")

    @torch.no_grad()
    def _evaluate(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, float]:
        assert isinstance(pl_module, DiffusionPolicyModule)
        scores = TaskScores(pl_module.tasks, pl_module.device)
        with trainer.precision_plugin.forward_context():
            for batch in trainer.datamodule.evaluation_dataloader():  # type: ignore[attr-defined]
                scores.update(pl_module.evaluate_batch(trainer.strategy.batch_to_device(batch)))
        self.last = scores.compute("val")
        self._last_step = trainer.global_step
        for logger in trainer.loggers:
            logger.log_metrics(self.last, step=trainer.global_step)
        trainer.callback_metrics.update({name: torch.tensor(value) for name, value in self.last.items()})
        return self.last

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first, "last": self.last, "last_step": self._last_step}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.first, self.last, self._last_step = state_dict["first"], state_dict["last"], state_dict["last_step"]
