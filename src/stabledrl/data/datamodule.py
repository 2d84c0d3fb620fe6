"""Streams the prompts of one or more tasks."""

import os
from typing import Any, Literal, get_args

from lightning.pytorch import LightningDataModule
from typing_extensions import override

from stabledrl.data.contamination import report_overlap
from stabledrl.data.encoding import EncodedPrompt, check_columns, encode_rows, special_ids
from stabledrl.data.mixing import check_weights
from stabledrl.data.prompt_loader import EvaluationLoader, PromptLoader
from stabledrl.errors import UserInputError
from stabledrl.protocols import Split, Task
from stabledrl.rewards.scoring import warm_up

Contamination = Literal["drop", "report", "off"]


class PromptDataModule(LightningDataModule):
    """Prompts for training, shuffled, and held-out prompts for evaluation.

    Args:
        tasks: Where prompts come from, for training and evaluation.
        prompts_per_rollout: Prompts per rollout; each is sampled `group_size` times.
        updates_per_rollout: Optimizer steps on each rollout, as `GroupRollout` has it. The command line links the two.
        micro_batches: The trainer's `accumulate_grad_batches`. The command line links the two.
        evaluation_batch_size: Prompts per batch of an evaluation; its result does not depend on it.
        max_prompt_length: Longer prompts are dropped, with a count; None keeps all.
        evaluation_tasks: Further tasks, for evaluation alone.
        task_weights: Each task's share of a rollout, by its name, in any unit; None mixes the tasks in proportion to
            their numbers of prompts.
        contamination: What happens to training rows that occur in an evaluation set: `drop` them, `report` them, or do
            not look (`off`).
        seed: Seed of the order; None takes Lightning's `seed_everything`, or 0.

    Raises:
        UserInputError: A value is out of range, weights are not those of the tasks, or a task has no held-out rows or
            lacks a column that its rewards need.
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
        evaluation_tasks: list[Task] | None = None,
        task_weights: dict[str, float] | None = None,
        contamination: Contamination = "drop",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if not tasks:
            raise UserInputError("tasks is empty: at least one is needed")
        self.tasks = [*tasks, *(evaluation_tasks or [])]
        self.train_tasks = tasks
        names = [task.name for task in self.tasks]
        if len(set(names)) < len(names):
            raise UserInputError(f"task names {names} must be distinct; set `name`")
        _check_positive(
            prompts_per_rollout=prompts_per_rollout,
            updates_per_rollout=updates_per_rollout,
            micro_batches=micro_batches,
            evaluation_batch_size=evaluation_batch_size,
        )
        if contamination not in get_args(Contamination):
            raise UserInputError(f"contamination {contamination!r} is not one of {', '.join(get_args(Contamination))}")
        if task_weights is not None:
            check_weights(task_weights, dict.fromkeys(task.name for task in tasks))
        for task in self.tasks:
            check_columns(task, task.rows("evaluation"))
        self.prompts_per_rollout = prompts_per_rollout
        self.updates_per_rollout = updates_per_rollout
        self.micro_batches = micro_batches
        self.evaluation_batch_size = evaluation_batch_size
        self.max_prompt_length = max_prompt_length
        self.task_weights = task_weights
        self.contamination = contamination
        self._left_out: dict[str, frozenset[int]] = {}
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed

    @override
    def setup(self, stage: str) -> None:
        """Checks the training rows, before the model is loaded, and has graders get ready meanwhile."""
        for task in self.tasks:
            warm_up(task.rewards)
        if stage != "fit":
            return
        for task in self.train_tasks:
            if not task.rows("train"):
                raise UserInputError(
                    f"task {task.name!r} has no training rows; move it to evaluation_tasks, or name a training set"
                )
            check_columns(task, task.rows("train"))
        if self.contamination != "off":
            held_out = {task.name: task.rows("evaluation") for task in self.tasks}
            for task in self.train_tasks:
                found = report_overlap(task.name, task.rows("train"), held_out, drop=self.contamination == "drop")
                self._left_out[task.name] = found

    def _module(self) -> Any:
        """The LightningModule, which has the tokenizer once its model is configured."""
        return self.trainer.lightning_module  # type: ignore[union-attr]

    def _encoded(self, split: Split, tasks: list[Task]) -> list[EncodedPrompt]:
        tokenizer, vocabulary = self._module().tokenizer, self._module().vocabulary
        special = special_ids(tokenizer, {vocabulary.mask_token_id, *vocabulary.end_token_ids})
        encoded: list[EncodedPrompt] = []
        first_id = 0
        for task in tasks:
            rows = task.rows(split)
            encoded += encode_rows(
                rows,
                tokenizer,
                task.name,
                max_prompt_length=self.max_prompt_length,
                first_id=first_id,
                special=special,
                left_out=self._left_out.get(task.name, ()) if split == "train" else (),
            )
            first_id += len(rows)
        self._check_context(encoded)
        return encoded

    def _check_context(self, encoded: list[EncodedPrompt]) -> None:
        module = self._module()
        if getattr(module, "policy", None) is None or not hasattr(module, "sampler"):
            return
        context = getattr(module.policy.model.config, "max_position_embeddings", None)
        longest, completion = max(encoded, key=lambda one: len(one.token_ids)), module.sampler.completion_length
        tokens = len(longest.token_ids)
        if context is not None and tokens + completion > context:
            raise UserInputError(
                f"task {longest.task!r}: a prompt of {tokens} tokens and completion_length {completion} do not fit the "
                f"model's context of {context}; max_prompt_length {context - completion} drops those that are longer"
            )

    @override
    def train_dataloader(self) -> PromptLoader:
        trainer: Any = self.trainer
        if every := trainer.reload_dataloaders_every_n_epochs:
            raise UserInputError(
                f"reload_dataloaders_every_n_epochs {every} would start the order of prompts anew; it must be 0"
            )
        return PromptLoader(
            self._encoded("train", self.train_tasks),
            self.prompts_per_rollout,
            self.updates_per_rollout * self.micro_batches,
            self.seed,
            self._module().vocabulary.pad_token_id,
            self.task_weights,
        )

    def evaluation_dataloader(self) -> EvaluationLoader:
        """All held-out prompts, in order."""
        return EvaluationLoader(
            self._encoded("evaluation", self.tasks), self.evaluation_batch_size, self._module().vocabulary.pad_token_id
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


def _check_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise UserInputError(f"{name} {value} must be at least 1")
