"""Logs what is known once a rollout, where `LightningModule.log` would repeat it on every later step of the epoch."""

from collections.abc import Mapping

import torch
from lightning.pytorch import Trainer


def log_once(trainer: Trainer, metrics: Mapping[str, float], step: int) -> None:
    """Writes metrics to the loggers, whatever `log_every_n_steps` is, and keeps them for monitors.

    Args:
        trainer: The trainer.
        metrics: Numbers by name.
        step: The step they belong to.
    """
    for logger in trainer.loggers:
        logger.log_metrics(dict(metrics), step=step)
    keep_for_monitors(trainer, metrics)


def keep_for_monitors(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Makes metrics known to whatever monitors one, e.g. a checkpoint callback."""
    trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
