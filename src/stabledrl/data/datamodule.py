"""Streams the prompts of one or more tasks."""

import os
from typing import Any

from lightning.pytorch import LightningDataModule
from typing_extensions import override

from stabledrl.data.encoding import EncodedPrompt, check_columns, encode_rows, special_ids
from stabledrl.data.prompt_loader import EvaluationLoader, PromptLoader
from stabledrl.errors import UserInputError
from stabledrl.protocols import Split, Task


class PromptDataModule(LightningDataModule):
    """Prompts for training, shuffled, and held-out prompts for evaluation.

    Args:
        tasks: Where prompts come from. Their training prompts are mixed in proportion to their numbers.
        prompts_per_rollout: Prompts per rollout; each is sampled `group_size` times.
        updates_per_rollout: Optimizer steps on each rollout, as `GroupRollout` has it. The command line links the two.
        micro_batches: The trainer's `accumulate_grad_batches`. The command line links the two.
        evaluation_batch_size: Prompts per batch of an evaluation; its result does not depend on it.
        max_prompt_length: Longer prompts are dropped, with a count; None keeps all.
        seed: Seed of the order; None takes Lightning's `seed_everything`, or 0.

    Raises:
        UserInputError: A value is out of range, a task has no held-out rows, or lacks a column that its rewards need.
    """

    def __init__(
        self,
        tasks: list[Task],
        prompts_per_rollout: int = 8,
        *,
        updates_per_rollout: int = 2,
        micro_batches: int = 1,
        evaluation_batch_size: int = 64,
        max_prompt_length: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if not tasks:
            raise UserInputError("tasks is empty: at least one is needed")
        names = [task.name for task in tasks]
        if len(set(names)) < len(names):
            raise UserInputError(f"task names {names} must be distinct; set `name`")
        for name, value in (
            ("prompts_per_rollout", prompts_per_rollout),
            ("updates_per_rollout", updates_per_rollout),
            ("micro_batches", micro_batches),
            ("evaluation_batch_size", evaluation_batch_size),
        ):
            if value < 1:
                raise UserInputError(f"{name} {value} must be at least 1")
        for task in tasks:
            check_columns(task, task.rows("evaluation"))
        self.tasks = tasks
        self.prompts_per_rollout = prompts_per_rollout
        self.updates_per_rollout = updates_per_rollout
        self.micro_batches = micro_batches
        self.evaluation_batch_size = evaluation_batch_size
        self.max_prompt_length = max_prompt_length
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed

    @override
    def setup(self, stage: str) -> None:
        """Checks the training rows, before the model is loaded."""
        if stage == "fit":
            for task in self.tasks:
                check_columns(task, task.rows("train"))

    def _module(self) -> Any:
        """The LightningModule, which has the tokenizer once its model is configured."""
        return self.trainer.lightning_module  # type: ignore[union-attr]

    def _encoded(self, split: Split) -> list[EncodedPrompt]:
        tokenizer, vocabulary = self._module().tokenizer, self._module().vocabulary
        special = special_ids(tokenizer, {vocabulary.mask_token_id, *vocabulary.end_token_ids})
        encoded: list[EncodedPrompt] = []
        first_id = 0
        for task in self.tasks:
            rows = task.rows(split)
            encoded += encode_rows(
                rows,
                tokenizer,
                task.name,
                max_prompt_length=self.max_prompt_length,
                first_id=first_id,
                special=special,
            )
            first_id += len(rows)
        return encoded

    @override
    def train_dataloader(self) -> PromptLoader:
        trainer: Any = self.trainer
        if every := trainer.reload_dataloaders_every_n_epochs:
            raise UserInputError(
                f"reload_dataloaders_every_n_epochs {every} would start the order of prompts anew; it must be 0"
            )
        return PromptLoader(
            self._encoded("train"),
            self.prompts_per_rollout,
            self.updates_per_rollout * self.micro_batches,
            self.seed,
            self._module().vocabulary.pad_token_id,
        )

    def evaluation_dataloader(self) -> EvaluationLoader:
        """All held-out prompts, in order."""
        return EvaluationLoader(
            self._encoded("evaluation"), self.evaluation_batch_size, self._module().vocabulary.pad_token_id
        )

    @override
    def val_dataloader(self) -> EvaluationLoader:
        return self.evaluation_dataloader()

    @override
    def test_dataloader(self) -> EvaluationLoader:
        return self.evaluation_dataloader()

    @override
    def predict_dataloader(self) -> EvaluationLoader:
        return self.evaluation_dataloader()
