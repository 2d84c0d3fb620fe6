"""What is trained by one process and by two, and has to come out the same."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from tests.training import LENGTH, Digits, tiny_module, tiny_policy, train
from torch import Tensor
from torch.distributed.tensor import DTensor

from stabledrl.callbacks import GradientSpikeMonitor, GroupRollout, RunCheckpoint
from stabledrl.data import DemonstrationDataModule
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.objectives import GRPO, StableDRL
from stabledrl.protocols import Split
from stabledrl.sft import SupervisedModule


def reward_some_prompts(prompts: list[str], completions: list[str], **columns: Any) -> list[float | None]:
    """No reward for half of the prompts, so that now and then one process of two has none."""
    return [
        sum(own in "01234" for own in text) / LENGTH if prompt < "4" else None
        for prompt, text in zip(prompts, completions)
    ]


SCENARIOS: dict[str, dict[str, Any]] = {
    "whole groups": {"prompts": 2},
    "split groups": {"prompts": 1},
    "split groups, micro-batches": {"prompts": 3, "accumulate": 3},
    "whole groups, micro-batches": {"prompts": 4, "accumulate": 2},
    "small clip": {"prompts": 2, "objective": GRPO(), "gradient_clip_val": 0.01},
    "no rewards on one process": {"prompts": 2, "tasks": [Digits(reward_some_prompts)], "kl_coefficient": 0.0},
    "activation checkpointing": {"prompts": 2, "activation_checkpointing": True},
}
"""Options of `run`. Of 1 or 3 prompts with 4 completions each, two processes get parts of groups."""

MODULE_OPTIONS = ("objective", "sampler", "kl_coefficient", "activation_checkpointing", "lora")


@dataclass
class Watch(Callback):
    """Keeps what the updates of this process were like."""

    metrics: list[dict[str, float]] = field(default_factory=list)
    rewarded: list[bool] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.rewarded.append(bool(batch["rollouts"].graded.any()))
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.metrics.append({name: value.item() for name, value in trainer.callback_metrics.items()})

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        assert trainer.model is not None
        self.weights = [local(parameter).clone() for parameter in trainer.model.parameters()]

    def plain(self) -> dict[str, Any]:
        return {"metrics": self.metrics, "rewarded": self.rewarded, "weights": self.weights}


def supervised(**options: Any) -> dict[str, Any]:
    """Five updates on demonstrations.

    Returns:
        Losses, and the weights that this process holds.
    """
    module = SupervisedModule(
        policy=tiny_policy(num_layers=2),
        likelihood=MonteCarloElbo(draws=1, masking="uniform", reduction="length_normalized"),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    )
    data = DemonstrationDataModule(Shown(), LENGTH, batch_size=4, weak_from_step=2, weak_share=0.5)
    watch = Losses()
    trainer = Trainer(
        accelerator="cpu", max_steps=5, max_epochs=-1, logger=False, enable_checkpointing=False, callbacks=[watch],
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, **options,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    return {"losses": watch.losses, "weights": watch.weights}


class Shown(Digits):
    """Every digit is answered by itself."""

    def rows(self, split: Split) -> list[dict[str, Any]]:
        return [{**row, "completion": row["gold"] * 2, "weak_completion": "0"} for row in super().rows(split)]


@dataclass
class Losses(Callback):
    """Keeps the losses of all processes together, and what this one holds of the weights."""

    losses: list[float] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        self.losses.append(trainer.callback_metrics["train/loss"].item())

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        assert trainer.model is not None
        self.weights = [local(parameter).clone() for parameter in trainer.model.parameters()]


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def run(
    directory: Path, *callbacks: Callback, steps: int = 6, updates: int = 2, resume: Path | None = None, **options: Any
) -> tuple[dict[str, Any], Any]:
    """Trains and leaves `last.ckpt` in the directory.

    Returns:
        What `Watch` kept, and the module.
    """
    own = {name: options.pop(name) for name in MODULE_OPTIONS if name in options}
    module = tiny_module(
        policy=tiny_policy(num_layers=2),
        likelihood=MonteCarloElbo(draws=2, masking="uniform"),
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        **{"objective": StableDRL(eps_low=0.2, eps_high=0.2), "kl_coefficient": 0.1, **own},
    )
    watch = Watch()
    train(
        module,
        *callbacks,
        GradientSpikeMonitor(),
        RunCheckpoint(dirpath=str(directory)),
        watch,
        steps=steps,
        rollout=GroupRollout(
            group_size=4, temperature=1.0, updates_per_rollout=updates, max_ungraded_share=1.0, seed=0
        ),
        ckpt_path=resume,
        **options,
    )
    return watch.plain(), module
