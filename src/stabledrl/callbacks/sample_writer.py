"""Writes evaluated completions to disk."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from stabledrl.callbacks.sample_table import write_samples


class SampleWriter(Callback):
    """Writes every completion of `validate`, `test` and `predict` as a line of `<command>_samples.jsonl` in the log
    directory: prompt, completion, parsed answer, verdict, reason and reward.
    """

    def _write(self, trainer: Trainer, outputs: Any) -> None:
        path = self._path(trainer)
        # Every process evaluates all prompts.
        if path is not None and trainer.is_global_zero:
            write_samples(path, outputs["samples"])

    def _path(self, trainer: Trainer) -> Path | None:
        if trainer.log_dir is None or trainer.state.fn is None:
            return None
        return Path(trainer.log_dir) / f"{trainer.state.fn.value}_samples.jsonl"

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
        self._write(trainer, outputs)

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        path = self._path(trainer)
        if path is not None and path.exists():
            rank_zero_info(f"completions: {path}")
