"""The lines with which a run opens."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override


class RunSummary(Callback):
    """Says which model is trained or evaluated, on what, and where the records go."""

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _show(trainer, pl_module)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.validating:
            _show(trainer, pl_module)

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _show(trainer, pl_module)

    @override
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _show(trainer, pl_module)


def _show(trainer: Trainer, module: Any) -> None:
    log_dir = trainer.log_dir  # asked by all processes: they agree on it
    if not trainer.is_global_zero:
        return
    policy = getattr(module, "policy", None)
    if policy is not None:
        first = next(policy.parameters())
        count = sum(parameter.numel() for parameter in policy.parameters())
        precision = str(first.dtype).removeprefix("torch.")
        print(
            f"model: {policy.source or 'new'} ({policy.family}, {count:,} parameters, {precision}, {first.device.type})"
        )
    data = trainer.datamodule  # type: ignore[attr-defined]
    for task in getattr(data, "tasks", None) or [getattr(data, "task", None)]:
        if task is not None:
            print(f"task: {task.name} ({_sizes(task, training=trainer.state.fn == 'fit')})")
    if log_dir is not None:
        print(f"logs: {log_dir}", flush=True)


def _sizes(task: Any, *, training: bool) -> str:
    held_out = f"{len(task.rows('evaluation'))} held-out prompts"
    return f"{len(task.rows('train'))} training prompts, {held_out}" if training else held_out
