"""Notices when the policy stops earning reward, and warns, stops or goes back."""

import math
from collections import deque
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from stabledrl.callbacks.alarm import TrainingStoppedError, alarm
from stabledrl.callbacks.group_rollout import GroupRollout
from stabledrl.callbacks.log_once import log_once
from stabledrl.callbacks.saving import save_checkpoint
from stabledrl.checkpoints import HEALTHY_NAME
from stabledrl.errors import UserInputError

Action = Literal["warn", "stop", "rollback"]


class RewardCollapseMonitor(Callback):
    """Watches every rollout for three signs of collapse.

    - The running mean of the reward has fallen by `max_drop` from its best.
    - More than `max_flat_share` of the groups have no reward variance, on average over the window.
    - More than `max_identical_share` of the groups consist of one repeated completion, on average over the window.

    On `rollback` the weights and the optimizer return to the last healthy state, which this callback keeps as
    `healthy.ckpt`; the step count, the learning-rate schedule and the data go on, and draws are made anew. Kept as
    healthy is a state whose window is full, without symptom, and with a running mean that fell by less than half of
    `max_drop`. The best running mean outlives a rollback, so that several small falls are not forgiven. Logs
    `train/reward_running_mean`, `train/collapse_alarms` and `train/rollbacks`.

    Args:
        window: Rollouts the running means are taken over. Nothing is judged before it is full.
        max_drop: Fall of the running reward mean from its best that is a collapse, in units of the reward.
        max_flat_share: Share of flat groups that is a collapse; 1 never is.
        max_identical_share: Share of groups of identical completions that is a collapse; 1 never is.
        action: What to do on a collapse. `warn` speaks once until the run is healthy again.
        max_rollbacks: Further collapses stop the run.
        save_every_n_rollouts: How often a healthy state is kept, for `rollback`.

    Raises:
        UserInputError: A value is out of range.

    Example:
        >>> monitor = RewardCollapseMonitor(max_drop=0.2, action="stop")
    """

    requires_rollouts = True

    def __init__(
        self,
        window: int = 10,
        max_drop: float = 0.2,
        max_flat_share: float = 1.0,
        max_identical_share: float = 0.9,
        action: Action = "warn",
        max_rollbacks: int = 3,
        save_every_n_rollouts: int = 5,
    ) -> None:
        for name, value in (
            ("window", window),
            ("max_rollbacks", max_rollbacks),
            ("save_every_n_rollouts", save_every_n_rollouts),
        ):
            if value < 1:
                raise UserInputError(f"{name} {value} must be at least 1")
        if not max_drop > 0:
            raise UserInputError(f"max_drop {max_drop} must be above 0")
        for name, share in (("max_flat_share", max_flat_share), ("max_identical_share", max_identical_share)):
            if not 0 < share <= 1:
                raise UserInputError(f"{name} {share} must lie above 0 and at most at 1")
        if action not in ("warn", "stop", "rollback"):
            raise UserInputError(f"action {action!r} is not one of warn, stop, rollback")
        self.window, self.max_drop, self.action = window, max_drop, action
        self.max_flat_share, self.max_identical_share = max_flat_share, max_identical_share
        self.max_rollbacks, self.save_every_n_rollouts = max_rollbacks, save_every_n_rollouts
        self.alarms = self.rollbacks = 0
        self.best: float | None = None
        self._rewards: deque[float] = deque(maxlen=window)
        self._flat: deque[float] = deque(maxlen=window)
        self._identical: deque[float] = deque(maxlen=window)
        self._rollouts = 0
        self._alarmed = False
        self._healthy: str | None = None

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: dict[str, Any], batch_idx: int
    ) -> None:
        if batch["metrics"]:
            self._observe(trainer, batch["metrics"], batch["step"])
        # A rollback between two updates of a rollout would train the old weights on the collapsed ones' samples.
        if int(batch["slot"]) + 1 == int(batch["slots"]):
            self._act(trainer, batch["step"])

    def _observe(self, trainer: Trainer, metrics: dict[str, float], step: int) -> None:
        self._rollouts += 1
        if math.isnan(metrics["rollout/reward_mean"]):
            return  # no completion has a reward: it says nothing about the policy
        self._rewards.append(metrics["rollout/reward_mean"])
        self._flat.append(metrics["rollout/zero_variance_groups"])
        self._identical.append(metrics["rollout/identical_groups"])
        mean = sum(self._rewards) / len(self._rewards)
        if len(self._rewards) == self.window:
            self.best = mean if self.best is None else max(self.best, mean)
        log_once(trainer, {"train/reward_running_mean": mean}, step)

    def symptom(self) -> str | None:
        """What is wrong, in words; None while the run is healthy or too young to tell."""
        if len(self._rewards) < self.window or self.best is None:
            return None
        mean, flat, identical = (sum(values) / self.window for values in (self._rewards, self._flat, self._identical))
        if self.best - mean >= self.max_drop:
            return f"the reward's running mean fell from {self.best:.3f} to {mean:.3f}"
        if flat >= self.max_flat_share < 1:
            return f"{flat:.0%} of the groups have no reward variance"
        if identical >= self.max_identical_share < 1:
            return f"{identical:.0%} of the groups repeat one completion"
        return None

    def _act(self, trainer: Trainer, step: int) -> None:
        symptom = self.symptom()
        if symptom is None:
            self._alarmed = False
            if self.action == "rollback" and self._rollouts % self.save_every_n_rollouts == 0 and self._is_healthy():
                self._keep(trainer)
        elif not (self._alarmed and self.action == "warn"):
            self._alarmed = True
            self.alarms += 1
            self._answer(trainer, symptom)
        log_once(trainer, {"train/collapse_alarms": float(self.alarms), "train/rollbacks": float(self.rollbacks)}, step)

    def _is_healthy(self) -> bool:
        """Stricter than no symptom: a fall that has begun would be kept, and found again after going back to it."""
        if len(self._rewards) < self.window or self.best is None:
            return False
        return self.best - sum(self._rewards) / self.window < self.max_drop / 2

    def _keep(self, trainer: Trainer) -> None:
        callback = trainer.checkpoint_callback
        directory = getattr(callback, "dirpath", None) or trainer.default_root_dir
        # Known before it is written, so that the state in the file names the file.
        self._healthy = str((Path(directory) / HEALTHY_NAME).absolute())
        save_checkpoint(trainer, self._healthy)

    def _answer(self, trainer: Trainer, symptom: str) -> None:
        advice = "Try a smaller learning rate, fewer updates_per_rollout, or the StableDRL objective"
        message = f"step {trainer.global_step}: reward collapse, {symptom}"
        if self.action == "warn":
            alarm(f"{message}. {advice}")
        elif self.action == "stop" or self.rollbacks >= self.max_rollbacks:
            raise TrainingStoppedError(f"{message}; stopped after {self.rollbacks} rollbacks. {advice}")
        else:
            self._roll_back(trainer, message)

    def _roll_back(self, trainer: Trainer, message: str) -> None:
        # From this run's state, not from what lies in the directory: a resumed run writes to another one.
        path = self._healthy
        if path is None:
            raise TrainingStoppedError(f"{message}, before a healthy state could be kept; stopped")
        if not trainer.strategy.reduce_boolean_decision(Path(path).exists(), all=True):
            raise TrainingStoppedError(f"{message}; the healthy state {path!r} is gone; stopped")
        rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in trainer.optimizers]
        checkpoint = trainer.strategy.load_checkpoint(path, weights_only=True)
        trainer.strategy.load_model_state_dict(checkpoint, strict=trainer.lightning_module.strict_loading)
        trainer.strategy.load_optimizer_state_dict(checkpoint)
        for optimizer, own in zip(trainer.optimizers, rates):
            for group, rate in zip(optimizer.param_groups, own):
                group["lr"] = rate
        self.rollbacks += 1
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, GroupRollout):
                callback.rollback_count = self.rollbacks
        for values in (self._rewards, self._flat, self._identical):
            values.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        alarm(f"{message}; back to the weights of step {checkpoint['global_step']} (rollback {self.rollbacks})")

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "alarms": self.alarms,
            "rollbacks": self.rollbacks,
            "best": self.best,
            "rewards": list(self._rewards),
            "flat": list(self._flat),
            "identical": list(self._identical),
            "rollouts": self._rollouts,
            "alarmed": self._alarmed,
            "healthy": self._healthy,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.alarms, self.rollbacks = state_dict["alarms"], state_dict["rollbacks"]
        self.best, self._rollouts = state_dict["best"], state_dict["rollouts"]
        self._alarmed = state_dict["alarmed"]
        self._healthy = state_dict["healthy"]
        self._rewards = deque(state_dict["rewards"], maxlen=self.window)
        self._flat = deque(state_dict["flat"], maxlen=self.window)
        self._identical = deque(state_dict["identical"], maxlen=self.window)
