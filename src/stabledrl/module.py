"""The LightningModule: owns the policy and the frozen reference, turns rollouts into a loss."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, get_args

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor
from typing_extensions import override

from stabledrl.backbones import Policy
from stabledrl.diffusion import check_attention
from stabledrl.errors import UserInputError
from stabledrl.evaluation import TaskScores, evaluate_batch
from stabledrl.gradients import gradient_norm
from stabledrl.objectives.kl import KLEstimator, KLLevel, kl_shares
from stabledrl.policy_module import PolicyModule, Precision
from stabledrl.protocols import Denoiser, LikelihoodEstimator, Objective, Sampler, Task
from stabledrl.types import ObjectiveOutput, RolloutBatch, Sample, combine_metrics


def check_needs(objective: Objective, likelihood: LikelihoodEstimator, sampler: Sampler) -> None:
    """Refuses an objective whose estimates would lack something.

    Raises:
        UserInputError: Something is needed that is not provided.
    """
    provided = likelihood.provides | sampler.provides
    for asking in (objective, likelihood):
        if missing := asking.needs - provided:
            raise UserInputError(
                f"{type(asking).__name__} needs {', '.join(sorted(missing))}, but {type(likelihood).__name__} "
                f"provides {', '.join(sorted(likelihood.provides))} and {type(sampler).__name__} "
                f"{', '.join(sorted(sampler.provides)) or 'nothing'}"
            )


class DiffusionPolicyModule(PolicyModule):
    """Trains a masked diffusion language model on graded rollouts.

    Rollouts come from a callback, `stabledrl.callbacks.GroupRollout`, which puts them into the batch.

    Args:
        policy: Model directory, hub id, or a policy in memory. A path is loaded when training starts, not before.
        objective: The loss.
        likelihood: Estimates log-likelihoods for objective, ratio and KL.
        sampler: Decodes completions, in rollouts and evaluations alike.
        optimizer: Makes the optimizer from the trainable parameters.
        lr_scheduler: Makes the learning-rate schedule, stepped once per optimizer step; None keeps the rate.
        kl_coefficient: Factor of the KL penalty towards the frozen reference; 0 builds no reference.
        kl_estimator: k1, k2 or k3, see `stabledrl.objectives.kl`.
        kl_level: `sequence`, `token` or `sequence_per_token`, see `stabledrl.objectives.kl.kl_shares`.
        dtype: Precision of the weights.

    Raises:
        UserInputError: The objective needs what the likelihood does not provide, or a value is out of range.
    """

    def __init__(
        self,
        policy: str | Policy,
        objective: Objective,
        likelihood: LikelihoodEstimator,
        sampler: Sampler,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: LRSchedulerCallable | None = None,
        kl_coefficient: float = 0.0,
        kl_estimator: KLEstimator = "k3",
        kl_level: KLLevel = "sequence",
        dtype: Precision = "float32",
    ) -> None:
        super().__init__(policy, optimizer, lr_scheduler, dtype)
        check_needs(objective, likelihood, sampler)
        if not (kl_coefficient >= 0 and math.isfinite(kl_coefficient)):
            raise UserInputError(f"kl_coefficient {kl_coefficient} must be a finite number of at least 0")
        for name, value, valid in (
            ("kl_estimator", kl_estimator, get_args(KLEstimator)),
            ("kl_level", kl_level, get_args(KLLevel)),
        ):
            if value not in valid:
                raise UserInputError(f"{name} {value!r} is not one of {', '.join(valid)}")
        if kl_coefficient and kl_level == "token" and "shared_masks" not in likelihood.provides:
            raise UserInputError(
                f"kl_level token needs shared_masks, which {type(likelihood).__name__} does not provide"
            )
        self.objective = objective
        self.likelihood = likelihood
        self.sampler = sampler
        self.kl_coefficient = kl_coefficient
        self.kl_estimator: KLEstimator = kl_estimator
        self.kl_level: KLLevel = kl_level
        self.needs_reference = kl_coefficient > 0
        """Callbacks that compare with the reference set this in their `setup`."""
        # In a tuple, not a submodule: it must not be trained, saved or counted.
        self._reference: tuple[Policy, ...] = ()
        self._collected: list[Mapping[str, Tensor]] = []
        self._has_signal = False
        self._scores: TaskScores | None = None

    @override
    def configure_model(self) -> None:
        """Loads the policy and, where used, copies the reference: before a checkpoint is restored, so of the start."""
        super().configure_model()
        policy = self.loaded_policy
        check_attention(policy.block_size, self.sampler, self.likelihood)
        if self.needs_reference and not self._reference:
            self._reference = (copy.deepcopy(policy).requires_grad_(False).eval(),)

    @property
    def reference(self) -> Denoiser | None:
        """The frozen reference; None where nothing uses it."""
        return self._reference[0] if self._reference else None

    @override
    def on_fit_start(self) -> None:
        for reference in self._reference:
            reference.to(device=self.device, dtype=next(self.loaded_policy.parameters()).dtype)

    @override
    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        if "rollouts" not in batch:
            raise UserInputError("the batch holds no rollouts: add the GroupRollout callback to the trainer")
        rollouts: RolloutBatch = batch["rollouts"]
        output = self._loss(rollouts, batch["update"], batch.get("group_log_normalizer"))
        self._has_signal |= bool(rollouts.advantages.any()) or self.kl_coefficient > 0
        self._collected.append(output.metrics)
        if (int(batch["slot"]) + 1) % self.trainer.accumulate_grad_batches == 0:
            self._log_update()
        # Lightning divides by accumulate_grad_batches, but shares of an update add up.
        return output.loss * self.trainer.accumulate_grad_batches

    def _loss(self, rollouts: RolloutBatch, update: int, group_log_normalizer: Tensor | None) -> ObjectiveOutput:
        corruption = self.likelihood.corrupt(rollouts.sequences, update=update)
        current = self.likelihood(self, rollouts.sequences, corruption, vocabulary=self.vocabulary)
        output = self.objective(current, rollouts, group_log_normalizer=group_log_normalizer)
        loss, metrics = output.loss, dict(output.metrics)
        # Shares add up over micro-batches; metrics are means, so a share is scaled to the whole update's value.
        scale = rollouts.totals.rows / len(rollouts)
        if rollouts.reference is not None:
            divergence = kl_shares(current, rollouts, self.kl_estimator, self.kl_level).sum()
            metrics["kl_reference"] = divergence.detach() * scale
            if self.kl_coefficient:
                loss = loss + self.kl_coefficient * divergence
        metrics["loss"] = loss.detach() * scale
        return ObjectiveOutput(loss=loss, metrics=metrics)

    def _log_update(self) -> None:
        combined = combine_metrics(self._collected)
        self._collected.clear()
        self.log_dict({f"train/{name}": value for name, value in combined.items()}, batch_size=1)

    @override
    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        # Weight decay and momentum would move the weights even where no completion says anything.
        if not self.trainer.strategy.reduce_boolean_decision(self._has_signal, all=False):
            optimizer.zero_grad(set_to_none=True)
        self._has_signal = False

    @override
    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        norm = gradient_norm(self)
        if not norm.isfinite():
            raise FloatingPointError(
                "the gradient is not finite; add the GradientSpikeMonitor callback to skip and count such updates"
            )
        self.log("train/grad_norm_clipped", norm, batch_size=1)

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The data module's tasks by name."""
        tasks: list[Task] = getattr(self.trainer, "datamodule").tasks  # noqa: B009
        return {task.name: task for task in tasks}

    def evaluate_batch(self, batch: Mapping[str, Any]) -> list[Sample]:
        """Greedy completions of a batch of prompts, graded."""
        return evaluate_batch(
            batch,
            self.trainer.model or self,
            self.sampler,
            tasks=self.tasks,
            tokenizer=self.tokenizer,
            vocabulary=self.vocabulary,
        )

    @override
    def on_validation_epoch_start(self) -> None:
        self._scores = TaskScores(self.tasks, self.device)

    @override
    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, list[Sample]]:
        samples = self.evaluate_batch(batch)
        assert self._scores is not None
        self._scores.update(samples)
        return {"samples": samples}

    @override
    def on_validation_epoch_end(self) -> None:
        assert self._scores is not None
        self.log_dict(self._scores.compute("test" if self.trainer.testing else "val"))

    on_test_epoch_start, test_step, on_test_epoch_end = (
        on_validation_epoch_start,
        validation_step,
        on_validation_epoch_end,
    )

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, list[dict[str, Any]]]:
        # As dicts: Lightning cannot move frozen dataclasses to where it collects predictions.
        return {"samples": [dataclasses.asdict(sample) for sample in self.evaluate_batch(batch)]}
