"""Rollouts of one-digit prompts, without a trainer."""

from collections.abc import Mapping
from typing import Any

import torch
from tests.training import Digits, tiny_policy, tiny_sampler

from stabledrl.experience import Experience, ExperienceCollector
from stabledrl.group_sampling import GroupSampler
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.protocols import Task

LIKELIHOOD = MonteCarloElbo(draws=2, masking="uniform")


def prompts(*ids: int, task: str = "digits", width: int = 2) -> dict[str, Any]:
    """A loader's batch of the one-digit prompts `ids`, padded on the left to `width`."""
    policy = tiny_policy()
    rows = [policy.tokenizer(f"{own}=")["input_ids"] for own in ids]
    return {
        "prompt_ids": torch.tensor([[policy.vocabulary.pad_token_id] * (width - 2) + row for row in rows]),
        "prompt_mask": torch.tensor([[False] * (width - 2) + [True, True]] * len(ids)),
        "prompt_id": torch.tensor(ids),
        "prompts": [f"{own}=" for own in ids],
        "columns": [{"gold": str(own)} for own in ids],
        "tasks": [task] * len(ids),
        "rollout_index": torch.tensor(7),
    }


def collector(task: Task | None = None, **changes: Any) -> ExperienceCollector:
    policy = tiny_policy()
    task = task or Digits()
    whole: dict[str, Any] = {
        "likelihood": LIKELIHOOD,
        "baseline": "center",
        **{name: changes.pop(name) for name in ("likelihood", "baseline", "max_ungraded_share") if name in changes},
    }
    options: dict[str, Any] = {
        "sampler": tiny_sampler(),
        "tasks": {task.name: task},
        "tokenizer": policy.tokenizer,
        "vocabulary": policy.vocabulary,
        "group_size": 3,
        "temperature": 1.0,
        "seed": 0,
    }
    return ExperienceCollector(groups=GroupSampler(**{**options, **changes}), **whole)


def collect(batch: Mapping[str, Any], task: Task | None = None, **changes: Any) -> Experience:
    return collector(task, **changes).collect(batch, tiny_policy())
