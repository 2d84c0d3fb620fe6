"""The LightningModule: owns the policy and the frozen reference, turns rollouts into a loss."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, get_args

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor
from torch.distributed import DeviceMesh
from typing_extensions import override

from stabledrl.backbones import Policy
from stabledrl.backbones.lora import LoRA, WithoutAdapters, set_dropout_step
from stabledrl.diffusion import check_attention
from stabledrl.errors import UserInputError
from stabledrl.evaluation import EvaluatedBatch, Evaluator, TaskScores
from stabledrl.gradients import gradient_norm
from stabledrl.needs import check_needs
from stabledrl.objectives.kl import KLEstimator, KLLevel, kl_shares
from stabledrl.policy_module import PolicyModule, Precision
from stabledrl.processes import Processes, combine_log_sums
from stabledrl.protocols import Denoiser, GroupCoupledObjective, LikelihoodEstimator, Objective, Sampler, Task
from stabledrl.sharding import shard, shard_group
from stabledrl.types import ObjectiveOutput, RolloutBatch, combine_metrics


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
        offload_reference: Keep the reference on the CPU while it is not in use.
        dtype: Precision of the weights.
        activation_checkpointing: Compute activations anew in the backward pass instead of keeping them: less memory,
            about a third more time per update.
        lora: Adapters to train in place of the weights; None trains the weights. The policy without them is the
            reference, which takes no memory of its own.
        block_size: Tokens per block of a block-causal model; None takes what its config.json or its family says.
        mask_token_id: The mask token; None takes what config.json or the family says.
        revision: Branch, tag or commit of a hub id; None takes its main branch.

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
        offload_reference: bool = False,
        dtype: Precision = "float32",
        activation_checkpointing: bool = False,
        lora: LoRA | None = None,
        *,
        block_size: int | None = None,
        mask_token_id: int | None = None,
        revision: str | None = None,
    ) -> None:
        reading: dict[str, Any] = {"block_size": block_size, "mask_token_id": mask_token_id, "revision": revision}
        super().__init__(policy, optimizer, lr_scheduler, dtype, activation_checkpointing, lora, **reading)
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
        self.offload_reference = offload_reference
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
        self.load()
        policy = self.loaded_policy
        check_attention(policy.block_size, self.sampler, self.likelihood)
        if self.needs_reference and self.lora is None and not self._reference:
            self._reference = (copy.deepcopy(policy).requires_grad_(False).eval(),)
        self.prepare()

    @property
    def reference(self) -> Denoiser | None:
        """The frozen reference; None where nothing uses it."""
        if self.needs_reference and self.lora is not None:
            return WithoutAdapters(self.wrapped)
        return self._reference[0] if self._reference else None

    @override
    def on_fit_start(self) -> None:
        for reference in self._reference:
            reference.to(dtype=next(self.loaded_policy.parameters()).dtype)
            if (group := shard_group(self.wrapped)) is not None:
                mesh = DeviceMesh.from_group(group, self.device.type)
                shard(reference, mesh, self.compute_dtype, offload=self.offload_reference)
            elif not self.offload_reference:
                reference.to(self.device)

    @override
    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        if "rollouts" not in batch:
            raise UserInputError("the batch holds no rollouts: add the GroupRollout callback to the trainer")
        rollouts: RolloutBatch = batch["rollouts"]
        set_dropout_step(self.loaded_policy, batch["step"])
        output = self._loss(rollouts, batch["update"], batch["group_log_normalizer"], batch["split_groups"])
        self._has_signal |= bool(rollouts.advantages.any()) or self.kl_coefficient > 0
        self._collected.append(output.metrics)
        if (int(batch["slot"]) + 1) % self.trainer.accumulate_grad_batches == 0:
            self._log_update()
        # Lightning divides by accumulate_grad_batches, and strategies by the processes, but shares of an update add up.
        return output.loss * self.trainer.accumulate_grad_batches * self.trainer.world_size

    def _loss(
        self, rollouts: RolloutBatch, update: int, group_log_normalizer: Tensor | None, split_groups: bool
    ) -> ObjectiveOutput:
        corruption = self.likelihood.corrupt(rollouts.sequences, update=update)
        current = self.likelihood(self, rollouts.sequences, corruption, vocabulary=self.vocabulary)
        if split_groups:
            # The other rows of these groups are with other processes, which are at this point too.
            assert isinstance(self.objective, GroupCoupledObjective)
            with torch.no_grad():
                own = self.objective.log_normalizers(current.detach(), rollouts)
            group_log_normalizer = combine_log_sums(Processes.of_run(), own)
        output = self.objective(current, rollouts, group_log_normalizer=group_log_normalizer)
        loss, metrics = output.loss, dict(output.metrics)
        # Shares add up over micro-batches and processes; metrics are means over them.
        scale = self.trainer.accumulate_grad_batches * self.trainer.world_size
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
        if (processes := Processes.of_run()).count > 1:
            values = torch.stack([value.float() for value in combined.values()]).cpu()
            combined = combine_metrics([dict(zip(combined, part)) for part in processes.exchange(values)])
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
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        norm = gradient_norm(self.wrapped)
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

    def evaluate_batch(
        self, batch: Mapping[str, Any], sampler: Sampler | None = None, **settings: Any
    ) -> EvaluatedBatch:
        """Completions of a batch of prompts, graded: greedy ones of its own sampler unless `Evaluator` settings differ.

        All processes call this together, with the same batch, and have the completions of all.
        """
        evaluator = Evaluator(tasks=self.tasks, tokenizer=self.tokenizer, vocabulary=self.vocabulary, **settings)
        with self.gathered() as policy:
            return evaluator.evaluate(batch, policy, sampler or self.sampler, Processes.of_run())

    @override
    def on_validation_epoch_start(self) -> None:
        self._scores = TaskScores(self.tasks)

    @override
    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        evaluated = self.evaluate_batch(batch)
        assert self._scores is not None
        self._scores.update(evaluated.samples)
        return {"samples": evaluated.samples, "evaluated": evaluated}

    @override
    def on_validation_epoch_end(self) -> None:
        assert self._scores is not None
        scores = self._scores.compute("test" if self.trainer.testing else "val")
        # Every process has the scores of all: the maximum changes nothing, and Lightning wants to hear of a reduction.
        self.log_dict(scores, sync_dist=True, reduce_fx="max")

    on_test_epoch_start, test_step, on_test_epoch_end = (
        on_validation_epoch_start,
        validation_step,
        on_validation_epoch_end,
    )

    @override
    def predict_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, list[dict[str, Any]]]:
        # As dicts: Lightning cannot move frozen dataclasses to where it collects predictions.
        return {"samples": [dataclasses.asdict(sample) for sample in self.evaluate_batch(batch).samples]}
