"""SampleWriter: every evaluated completion once, on one process."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tests.training import Digits, tiny_module, tiny_sampler

from stabledrl.callbacks import SampleWriter
from stabledrl.data import PromptDataModule


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_every_completion_becomes_a_line(tmp_path: Path, command: str) -> None:
    trainer = Trainer(
        accelerator="cpu",
        logger=TensorBoardLogger(tmp_path, name="", version=""),
        callbacks=[SampleWriter()],
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    data = PromptDataModule([Digits()], evaluation_batch_size=3, seed=0)
    getattr(trainer, command)(tiny_module(), datamodule=data)
    text = (tmp_path / f"{command}_samples.jsonl").read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.splitlines()]
    assert [line["prompt_id"] for line in found] == list(range(8))
    assert all(line["reward"] is not None and line["advantage"] is None for line in found)
    decoding = {(line["completion_length"], line["denoising_steps"], line["temperature"]) for line in found}
    assert decoding == {(4, 2, 0.0)}


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    trainer: Any = SimpleNamespace(
        log_dir=tmp_path, is_global_zero=False, state=SimpleNamespace(fn=SimpleNamespace(value="test"))
    )
    module: Any = SimpleNamespace(sampler=tiny_sampler())
    SampleWriter().on_test_batch_end(trainer, module, {"samples": []}, None, 0)
    assert not list(tmp_path.iterdir())
    trainer.is_global_zero = True
    SampleWriter().on_test_batch_end(trainer, module, {"samples": []}, None, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["test_samples.jsonl"]
