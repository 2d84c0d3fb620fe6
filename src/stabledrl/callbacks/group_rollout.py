"""Decides when rollouts are made and which of their rows an update sees."""

import math
import os
from typing import Any, get_args

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from stabledrl.advantages import Baseline
from stabledrl.backbones.lora import dropout_without_gradient
from stabledrl.callbacks.alarm import alarm
from stabledrl.callbacks.log_once import keep_for_monitors, log_once
from stabledrl.errors import UserInputError
from stabledrl.experience import Experience, ExperienceCollector, score
from stabledrl.flat_groups import FlatGroups
from stabledrl.group_sampling import GroupSampler
from stabledrl.module import DiffusionPolicyModule
from stabledrl.processes import Processes, check_shares, combine_log_sums
from stabledrl.protocols import GroupCoupledObjective
from stabledrl.types import RolloutBatch


class GroupRollout(Callback):
    """Samples a group of completions per prompt and hands them to the updates.

    The data module yields each batch of prompts once per slot: `updates_per_rollout` times the trainer's
    `accumulate_grad_batches`. On the first slot the groups are sampled; every slot then finds its share of them in the
    batch: `batch["rollouts"]` (`RolloutBatch`), `batch["update"]`, `batch["step"]` (optimizer steps made so far) and,
    on the first slot only, `batch["samples"]`, those of all processes. Logs `rollout/...` once a rollout, at its first
    step.

    Several processes share the completions of a rollout evenly. Groups stay whole on a process where the prompts go
    round; otherwise they are split, which changes no gradient. Every process remembers the whole rollout, so that a
    checkpoint does not depend on their number.

    Args:
        group_size: Completions per prompt, at least 2.
        temperature: Sampling temperature, above 0.
        updates_per_rollout: Optimizer steps on each rollout.
        baseline: What a reward is compared with: `center`, `standardize` or `leave_one_out`.
        rows_per_forward: Completions per forward pass while sampling and scoring; None takes all at once.
        max_ungraded_share: End the run if a larger share of a rollout gets no finite reward.
        flat_groups: Groups whose rewards are all equal teach nothing: `keep` counts them in the update's means, `drop`
            leaves them out, `resample` draws their completions anew (`rollout/resampled_groups`).
        max_resamples: How often a flat group is drawn anew at most; rewards then tell of the last draw.
        seed: Seed of all draws; None takes Lightning's `seed_everything`, or 0.

    Raises:
        UserInputError: A value is out of range.

    Example:
        >>> rollout = GroupRollout(group_size=8, temperature=0.9, updates_per_rollout=2)
    """

    requires_rollouts = True

    def __init__(
        self,
        group_size: int = 8,
        temperature: float = 0.9,
        updates_per_rollout: int = 2,
        baseline: Baseline = "center",
        rows_per_forward: int | None = None,
        max_ungraded_share: float = 0.5,
        flat_groups: FlatGroups = "keep",
        max_resamples: int = 2,
        seed: int | None = None,
    ) -> None:
        if group_size < 2:
            raise UserInputError(f"group_size {group_size} must be at least 2: one alone has nothing to compare with")
        if not 0 < temperature < math.inf:
            raise UserInputError(f"temperature {temperature} must be finite and above 0: greedy groups are all alike")
        numbers = {"updates_per_rollout": updates_per_rollout, "max_resamples": max_resamples}
        for name, number in {**numbers, "rows_per_forward": rows_per_forward}.items():
            if number is not None and number < 1:
                raise UserInputError(f"{name} {number} must be at least 1")
        if not 0 <= max_ungraded_share <= 1:
            raise UserInputError(f"max_ungraded_share {max_ungraded_share} must lie between 0 and 1")
        for name, value, kind in (("baseline", baseline, Baseline), ("flat_groups", flat_groups, FlatGroups)):
            if value not in get_args(kind):
                raise UserInputError(f"{name} {value!r} is not one of {', '.join(get_args(kind))}")
        self.group_size = group_size
        self.temperature = temperature
        self.updates_per_rollout = updates_per_rollout
        self.baseline: Baseline = baseline
        self.rows_per_forward = rows_per_forward
        self.max_ungraded_share = max_ungraded_share
        self.flat_groups: FlatGroups = flat_groups
        self.max_resamples = max_resamples
        self.seed = int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed
        self.rollback_count = 0
        self._saved_seed = self.seed
        self._rollout_index = -1
        self._rollouts: RolloutBatch | None = None
        self._metrics: dict[str, float] = {}
        self._normalizer: Tensor | None = None
        self._told_identical = False

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not isinstance(pl_module, DiffusionPolicyModule):
            raise UserInputError(f"GroupRollout needs a DiffusionPolicyModule, not a {type(pl_module).__name__}")
        prompts = getattr(trainer.datamodule, "prompts_per_rollout", None)  # type: ignore[attr-defined]
        if prompts is not None:
            check_shares(prompts, self.group_size, trainer.world_size, trainer.accumulate_grad_batches)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        keep_for_monitors(trainer, self._metrics)
        # Not where the state is loaded: a test of the checkpoint draws nothing that the seed decides.
        if self._saved_seed != self.seed:
            raise UserInputError(
                f"seed {self.seed} is not the checkpoint's {self._saved_seed}; resume with it (--seed_everything)"
            )

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: dict[str, Any], batch_idx: int
    ) -> None:
        assert isinstance(pl_module, DiffusionPolicyModule)
        parts, slot = trainer.accumulate_grad_batches, int(batch["slot"])
        if (slots := int(batch["slots"])) != self.updates_per_rollout * parts:
            raise UserInputError(
                f"the data module hands each batch out {slots} times, but updates_per_rollout "
                f"{self.updates_per_rollout} x accumulate_grad_batches {parts} needs "
                f"{self.updates_per_rollout * parts}; set its updates_per_rollout and micro_batches to these two"
            )
        update, part = divmod(slot, parts)
        with trainer.precision_plugin.forward_context():
            if slot == 0:
                experience = self._collect(pl_module, batch)
                batch["samples"] = experience.samples
            rollouts = self._current(batch)
            own = rollouts.select(Processes.of_run().share(len(rollouts)))
            size = len(own) // parts
            coupled = isinstance(pl_module.objective, GroupCoupledObjective) and size % self.group_size > 0
            if part == 0:
                self._normalizer = self._log_normalizers(pl_module, rollouts, own, update, parts) if coupled else None
        batch["rollouts"] = own.select(slice(part * size, (part + 1) * size)).to(batch["prompt_ids"].device)
        batch["update"] = update
        batch["step"] = trainer.global_step
        batch["group_log_normalizer"] = self._normalizer
        batch["split_groups"] = coupled and self._normalizer is None
        batch["metrics"] = self._metrics if slot == 0 else {}
        if slot == 0:
            self._log(trainer, pl_module)

    def _log(self, trainer: Trainer, pl_module: LightningModule) -> None:
        log_once(trainer, self._metrics, trainer.global_step)
        pl_module.log("reward", self._metrics["rollout/reward_mean"], prog_bar=True, logger=False, batch_size=1)
        identical = self._metrics["rollout/identical_groups"]
        if identical and not self._told_identical:
            alarm(
                f"step {trainer.global_step}: {identical:.0%} of the prompts got {self.group_size} times the same "
                f"completion and teach nothing (told once, see rollout/identical_groups). Try a higher temperature"
            )
            self._told_identical = True

    def _collect(self, pl_module: DiffusionPolicyModule, batch: dict[str, Any]) -> Experience:
        groups = GroupSampler(
            sampler=pl_module.sampler,
            tasks=pl_module.tasks,
            tokenizer=pl_module.tokenizer,
            vocabulary=pl_module.vocabulary,
            group_size=self.group_size,
            temperature=self.temperature,
            seed=self.seed,
            rows_per_forward=self.rows_per_forward,
            flat_groups=self.flat_groups,
            max_resamples=self.max_resamples,
        )
        experience = ExperienceCollector(
            groups=groups,
            likelihood=pl_module.likelihood,
            baseline=self.baseline,
            max_ungraded_share=self.max_ungraded_share,
        ).collect(
            batch,
            pl_module.wrapped,
            reference=pl_module.reference,
            rollback_count=self.rollback_count,
            processes=Processes.of_run(),
            gathered=pl_module.gathered,
        )
        self._rollouts, self._metrics = experience.rollouts, experience.metrics
        self._rollout_index = int(batch["rollout_index"])
        return experience

    def _current(self, batch: dict[str, Any]) -> RolloutBatch:
        index = int(batch["rollout_index"])
        if self._rollouts is None or self._rollout_index != index:
            raise UserInputError(
                f"update {int(batch['slot'])} of rollout {index} is due, but the checkpoint holds rollout "
                f"{self._rollout_index}: it was written without the GroupRollout callback's state"
            )
        return self._rollouts

    def _log_normalizers(
        self, pl_module: DiffusionPolicyModule, rollouts: RolloutBatch, own: RolloutBatch, update: int, parts: int
    ) -> Tensor | None:
        """Of groups that are split over batches; None where they are best found out in the training step.

        Where they are split over micro-batches: one pass without gradient over this process's rows, on the update's
        masks. Without micro-batches the training steps of all processes hold the groups' rows at the same time.
        """
        objective, device = pl_module.objective, pl_module.device
        assert isinstance(objective, GroupCoupledObjective)
        if not objective.uses_ratio:
            return objective.log_normalizers(None, rollouts).to(device)
        if parts == 1:
            return None
        own = own.to(device)
        likelihood, sequences = pl_module.likelihood, own.sequences
        step = pl_module.trainer.global_step
        with pl_module.gathered() as policy, dropout_without_gradient(pl_module.loaded_policy, step):
            current = score(
                likelihood,
                policy,
                sequences,
                likelihood.corrupt(sequences, update=update),
                vocabulary=pl_module.vocabulary,
                rows_per_forward=self.rows_per_forward or len(own) // parts,
            )
        return combine_log_sums(Processes.of_run(), objective.log_normalizers(current, own))

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "rollback_count": self.rollback_count,
            "rollout_index": self._rollout_index,
            "rollouts": None if self._rollouts is None else self._rollouts.state_dict(),
            "metrics": self._metrics,
            "told_identical": self._told_identical,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved_seed = state_dict["seed"]
        self.rollback_count = state_dict["rollback_count"]
        self._rollout_index = state_dict["rollout_index"]
        saved = state_dict["rollouts"]
        self._rollouts = None if saved is None else RolloutBatch.from_state_dict(saved)
        self._metrics = state_dict["metrics"]
        self._told_identical = state_dict["told_identical"]
