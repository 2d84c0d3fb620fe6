"""A progress bar that counts optimizer steps, so that its remaining time is the run's."""

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from typing_extensions import override


class StepProgressBar(TQDMProgressBar):
    """Shows optimizer steps out of `max_steps`, reward and remaining time."""

    @override
    def init_train_tqdm(self) -> Tqdm:
        bar = super().init_train_tqdm()
        bar.set_description("training")
        return bar

    @override
    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.max_steps < 1:
            super().on_train_epoch_start(trainer)
        elif self.train_progress_bar.total != trainer.max_steps:
            self.train_progress_bar.reset(trainer.max_steps)
            self.train_progress_bar.initial = trainer.global_step
            self.train_progress_bar.unit = "step"

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.max_steps < 1:
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        elif self._should_update(trainer.global_step, trainer.max_steps):
            bar = self.train_progress_bar
            bar.n = trainer.global_step
            bar.set_postfix(self.get_metrics(trainer, pl_module))
            bar.refresh()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.train_progress_bar.set_postfix(self.get_metrics(trainer, pl_module))

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        # The bar's line is ended, so that what is said of the exception begins on its own.
        if self._train_progress_bar is not None:
            self._train_progress_bar.close()

    @override
    def get_metrics(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> dict[str, int | str | float | dict[str, float]]:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return metrics
