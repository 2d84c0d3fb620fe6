"""Writes evaluated completions to disk."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from stabledrl.callbacks.sample_table import write_samples
from stabledrl.protocols import Sampler
from stabledrl.types import Sample


class SampleWriter(Callback):
    """Writes every completion of `validate`, `test` and `predict` as a line of `<command>_samples.jsonl` in the log
    directory: how it was decoded, prompt, completion, parsed answer, verdict, reason and reward.
    """

    @override
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        write_evaluated(trainer, outputs["samples"], pl_module.sampler)  # type: ignore[arg-type]

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        path = _path(trainer)
        if path is not None and path.exists():
            rank_zero_info(f"completions: {path}")


def write_evaluated(
    trainer: Trainer, samples: Iterable[Sample | Mapping[str, Any]], sampler: Sampler, temperature: float = 0.0
) -> None:
    """Appends completions to the command's file, by the first process.

    Args:
        trainer: Knows command and log directory; every process calls this.
        samples: Completions of all processes, as they are or as the dicts of their fields.
        sampler: What decoded them.
        temperature: At which temperature.
    """
    path = _path(trainer)
    if path is None or not trainer.is_global_zero:
        return
    steps = getattr(sampler, "denoising_steps", None)
    write_samples(
        path, samples, completion_length=sampler.completion_length, denoising_steps=steps, temperature=temperature
    )


def _path(trainer: Trainer) -> Path | None:
    if trainer.log_dir is None or trainer.state.fn is None:
        return None
    return Path(trainer.log_dir) / f"{trainer.state.fn.value}_samples.jsonl"
