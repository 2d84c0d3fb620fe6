"""Tiny trainings: a model of a few thousand weights, tasks of a few prompts, real trainers on the CPU."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from stabledrl.backbones import NewPolicy, Policy
from stabledrl.callbacks import GroupRollout
from stabledrl.data import PromptDataModule
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.module import DiffusionPolicyModule
from stabledrl.objectives import StableDRL
from stabledrl.protocols import Sampler, Split, Task
from stabledrl.samplers import SemiAutoregressiveSampler
from stabledrl.types import Completions

LENGTH = 4
CHARACTERS = "0123456789=+"
Score = Callable[..., list[Any]]


def small_digits(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """Varies within nearly every group: the share of characters below 5."""
    return [sum(character in "01234" for character in text) / LENGTH for text in completions]


def all_equal(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    return [0.5] * len(completions)


class Digits(Task):
    """Eight one-digit prompts, told apart by the column `gold`."""

    def __init__(self, score: Score = small_digits, name: str = "digits") -> None:
        self.name = name
        self.rewards = [score]
        self.reward_weights = [1.0]

    def rows(self, split: Split) -> Sequence[Mapping[str, Any]]:
        return [{"prompt": f"{digit}=", "gold": str(digit)} for digit in range(8)]


class Scripted:
    """A reward whose values follow a script: one entry per call (rollout), the last one repeated."""

    def __init__(self, *values: Callable[[int], list[Any]]) -> None:
        self.values = values
        self.calls = 0

    def __call__(self, prompts: list[str], completions: list[str], **columns: Any) -> list[Any]:
        self.calls += 1
        return self.values[min(self.calls, len(self.values)) - 1](len(completions))


def level(mean: float) -> Callable[[int], list[float]]:
    """Rewards that vary within each group (of even size) around a mean."""
    return lambda count: [mean + (0.01 if row % 2 else -0.01) for row in range(count)]


class Fixed(Sampler):
    """Writes given token ids, whatever the policy says; every row the same, cut after the first end token."""

    provides = frozenset()

    def __init__(self, *token_ids: int) -> None:
        self.token_ids = torch.tensor(token_ids)
        self.completion_length = len(token_ids)

    def __call__(self, forward: Any, prompt_ids: Tensor, prompt_mask: Tensor, **options: Any) -> Completions:
        vocabulary = options["vocabulary"]
        ids = self.token_ids.expand(len(prompt_ids), -1)
        ends = torch.isin(ids, torch.tensor(vocabulary.end_token_ids)).long()
        mask = ends.cumsum(dim=1) - ends == 0
        return Completions(
            token_ids=ids.masked_fill(~mask, vocabulary.mask_token_id),
            completion_mask=mask,
            step_map=torch.zeros_like(ids),
        )


def tiny_policy(seed: int = 0, **shape: Any) -> Policy:
    options = {"characters": CHARACTERS, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}
    return NewPolicy(**{**options, "seed": seed, **shape}).build()


def tiny_sampler() -> SemiAutoregressiveSampler:
    return SemiAutoregressiveSampler(completion_length=LENGTH, block_size=LENGTH, denoising_steps=2)


def adamw(parameters: Iterable[Tensor]) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


def tiny_module(**options: Any) -> DiffusionPolicyModule:
    """A module with defaults for all that a test does not care about; `policy` is fresh, so always the same."""
    defaults: dict[str, Any] = {
        "policy": options.pop("policy", None) or tiny_policy(),
        "objective": StableDRL(),
        "likelihood": MonteCarloElbo(draws=2, masking="uniform"),
        "sampler": tiny_sampler(),
        "optimizer": adamw,
    }
    return DiffusionPolicyModule(**{**defaults, **options})


def train(
    module: DiffusionPolicyModule,
    *callbacks: Callback,
    steps: int = 2,
    accumulate: int = 1,
    updates: int = 2,
    prompts: int = 2,
    group_size: int = 4,
    tasks: Sequence[Task] | None = None,
    rollout: GroupRollout | None = None,
    ckpt_path: str | Path | None = None,
    log_to: Path | None = None,
    data: dict[str, Any] | None = None,
    **options: Any,
) -> Trainer:
    """Runs a real trainer and returns it."""
    rollout = rollout or GroupRollout(group_size=group_size, temperature=1.0, updates_per_rollout=updates, seed=0)
    datamodule = PromptDataModule(
        list(tasks or [Digits()]),
        prompts_per_rollout=prompts,
        seed=0,
        **{
            "updates_per_rollout": rollout.updates_per_rollout,
            "micro_batches": accumulate,
            "contamination": "off",  # The toy tasks have the same prompts in both splits.
            **(data or {}),
        },
    )
    defaults: dict[str, Any] = {"devices": 1, "gradient_clip_val": 1.0, "log_every_n_steps": 1, "limit_val_batches": 0}
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        accumulate_grad_batches=accumulate,
        logger=options.pop("logger", False) if log_to is None else TensorBoardLogger(log_to, name="", version=""),
        enable_progress_bar=options.pop("enable_progress_bar", False),
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks),
        enable_model_summary=False,
        callbacks=[rollout, *callbacks],
        **{**defaults, **options},
    )
    trainer.fit(module, datamodule=datamodule, ckpt_path=None if ckpt_path is None else str(ckpt_path))
    return trainer


class Recorder(Callback):
    """Keeps what a training passes through its hooks."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.metrics: list[dict[str, float]] = []
        self.gradients: list[list[Tensor]] = []
        self.weights: list[dict[str, Tensor]] = []
        self.forwards = 0

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: dict[str, Any], batch_idx: int) -> None:
        self.batches.append(batch)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        self.gradients.append([p.grad.clone() for p in pl_module.parameters() if p.grad is not None])
        self.weights.append(weights(pl_module))

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        self.metrics.append({name: value.item() for name, value in trainer.callback_metrics.items()})


class Once(Callback):
    """Calls a function before the optimizer step of a given number, after the backward pass."""

    def __init__(self, act: Callable[[Trainer, Any], None], *at: int) -> None:
        self.act, self.at = act, at

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        if trainer.global_step in self.at:
            self.act(trainer, pl_module)


def scale_gradient(factor: float) -> Callable[[Trainer, Any], None]:
    def act(trainer: Trainer, module: Any) -> None:
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    return act


def weights(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def same(first: Any, second: Any) -> bool:
    """Bitwise equality of nested containers of tensors and plain values."""
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second))
    return bool(first == second)


def largest_difference(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    return max((first[name] - second[name]).abs().max().item() for name in first)


def events(directory: Path) -> dict[str, dict[int, list[float]]]:
    """Every scalar of a TensorBoard directory: name -> step -> values."""
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    found: dict[str, dict[int, list[float]]] = {}
    for name in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(name):
            found.setdefault(name, {}).setdefault(event.step, []).append(event.value)
    return found
