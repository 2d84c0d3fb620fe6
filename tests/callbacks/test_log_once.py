"""log_once writes at the step it is told and keeps the value for monitors."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from tests.training import events, tiny_module, train

from stabledrl.callbacks.log_once import log_once


class At(Callback):
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            log_once(trainer, {"own/value": 0.25}, step=17)


def test_is_written_once_and_kept(tmp_path: Path) -> None:
    trainer = train(tiny_module(), At(), steps=4, log_to=tmp_path, log_every_n_steps=1000)
    assert events(tmp_path)["own/value"] == {17: [0.25]}
    assert trainer.callback_metrics["own/value"].item() == 0.25
