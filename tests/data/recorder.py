"""A module that remembers the prompts it is shown, and trainers and data for it."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from transformers import PreTrainedTokenizerFast

from stabledrl.data import Countdown, PromptDataModule, Sudoku
from stabledrl.types import Vocabulary

END, MASK = 0, 1


class Recorder(LightningModule):
    """Has a tokenizer once its model is configured, and remembers what it was shown."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self._tokenizer = tokenizer
        self.configured = False
        self.seen: list[Any] = []
        self.evaluated: list[list[int]] = []
        self.vocabulary = Vocabulary(mask_token_id=MASK, pad_token_id=END, end_token_ids=(END,), num_candidates=99)

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        assert self.configured, "asked for the tokenizer before the model was configured"
        return self._tokenizer

    def configure_model(self) -> None:
        self.configured = True

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        self.seen.append(
            (batch["prompt_id"].tolist(), int(batch["rollout_index"]), int(batch["slot"]), batch["prompt_ids"].tolist())
        )
        return self.weight * 1.0

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.evaluated.append(batch["prompt_id"].tolist())

    def test_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_trainer(directory: Path, callbacks: list[Callback] | None = None, **settings: Any) -> Trainer:
    return Trainer(
        default_root_dir=directory,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(callbacks),
        callbacks=callbacks,
        **settings,
    )


def make_data(**settings: Any) -> PromptDataModule:
    defaults: dict[str, Any] = {
        "tasks": [Sudoku(3, 3), Countdown(train_size=2, evaluation_size=2)],
        "prompts_per_rollout": 2,
        "updates_per_rollout": 2,
    }
    return PromptDataModule(**{**defaults, **settings})


def length_reward(completions: list[str], **columns: Any) -> list[float]:
    """Stands for a user's own function."""
    return [float(len(completion)) for completion in completions]
