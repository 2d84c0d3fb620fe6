"""Every objective learns a trivial task from random weights: write one character as often as possible."""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from stabledrl import objectives
from stabledrl.backbones import NewPolicy
from stabledrl.callbacks import GradientSpikeMonitor, GroupRollout
from stabledrl.data import PromptDataModule
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.module import DiffusionPolicyModule
from stabledrl.objectives import GRPO, StableDRL
from stabledrl.protocols import LikelihoodEstimator, Objective, Split, Task
from stabledrl.samplers import SemiAutoregressiveSampler

LENGTH = 4


def shipped_objectives() -> list[Objective]:
    """Every objective of the package with its defaults: a new file is in this test without being named."""
    for module in pkgutil.iter_modules(objectives.__path__):
        importlib.import_module(f"{objectives.__name__}.{module.name}")
    classes = sorted(_subclasses(Objective), key=lambda cls: cls.__name__)
    return [
        cls() for cls in classes if cls.__module__.startswith(f"{objectives.__name__}.") and not inspect.isabstract(cls)
    ]


def _subclasses(cls: type) -> set[type]:
    return {cls, *(below for child in cls.__subclasses__() for below in _subclasses(child))}


def share_of_sevens(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    return [completion.count("7") / LENGTH for completion in completions]


class WriteSevens(Task):
    name = "sevens"
    rewards = [share_of_sevens]
    reward_weights = [1.0]

    def rows(self, split: Split) -> Sequence[Mapping[str, Any]]:
        return [{"prompt": f"{digit}="} for digit in range(8)]


SAMPLER = SemiAutoregressiveSampler(completion_length=LENGTH, block_size=LENGTH, denoising_steps=LENGTH)


def estimator_for(objective: Objective) -> LikelihoodEstimator:
    """The first estimator that gives an objective what it needs."""
    estimators = [MonteCarloElbo(draws=2, masking="complementary", share_masks=share) for share in (False, True)]
    return next(it for it in estimators if objective.needs <= it.provides | SAMPLER.provides)


def train(objective: Objective) -> float:
    module = DiffusionPolicyModule(
        policy=NewPolicy(characters="0123456789=", hidden_size=32, num_layers=1, num_heads=2).build(),
        objective=objective,
        likelihood=estimator_for(objective),
        sampler=SAMPLER,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
    )
    rollout = GroupRollout(group_size=8, temperature=1.0, updates_per_rollout=2, baseline="standardize", seed=0)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=60,
        max_epochs=-1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[rollout, GradientSpikeMonitor()],
    )
    trainer.fit(module, datamodule=PromptDataModule([WriteSevens()], 4, contamination="off", seed=0))
    return trainer.callback_metrics["rollout/reward_mean"].item()


@pytest.mark.parametrize("objective", shipped_objectives(), ids=lambda objective: type(objective).__name__)
def test_objective_learns_to_write_one_character(objective: Objective) -> None:
    assert train(objective) > 0.9  # chance is 1 in 12


def test_the_quickstarts_form_of_the_objective_learns_too() -> None:
    assert train(StableDRL(eps_low=0.2, eps_high=0.2, surrogate="elbo")) > 0.9


def test_no_objective_is_missed() -> None:
    assert {GRPO, StableDRL} <= {type(objective) for objective in shipped_objectives()}
