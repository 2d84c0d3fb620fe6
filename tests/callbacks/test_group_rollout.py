"""GroupRollout: micro-batches change nothing, a rollout serves its updates, its metrics are logged once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.demos.boring_classes import DemoModel
from tests.training import (
    Recorder,
    events,
    largest_difference,
    same,
    tiny_module,
    train,
    weights,
)

from stabledrl.callbacks import GroupRollout
from stabledrl.errors import UserInputError
from stabledrl.objectives import GRPO, StableDRL
from stabledrl.protocols import Objective

OBJECTIVES = [StableDRL(), StableDRL(eps_low=0.2, eps_high=0.2, surrogate="elbo"), GRPO()]


def run(objective: Objective, accumulate: int, updates: int = 2, **options: Any) -> tuple[Recorder, LightningModule]:
    recorder, module = Recorder(), tiny_module(objective=objective, kl_coefficient=0.1)
    train(module, recorder, steps=2 * updates, accumulate=accumulate, updates=updates, **options)
    return recorder, module


# 2 prompts x 4: two micro-batches hold a whole group each; four and eight split groups. 4 x 2: four are whole groups.
@pytest.mark.parametrize(
    ("prompts", "group_size", "accumulate"), [(2, 4, 2), (2, 4, 4), (2, 4, 8), (4, 2, 4), (1, 6, 2)]
)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=["stabledrl", "stabledrl-clipped", "grpo"])
def test_micro_batches_change_neither_gradient_nor_weights(
    objective: Objective, prompts: int, group_size: int, accumulate: int
) -> None:
    whole, first = run(objective, 1, prompts=prompts, group_size=group_size)
    parts, second = run(objective, accumulate, prompts=prompts, group_size=group_size)
    assert len(whole.gradients) == len(parts.gradients) == 4
    for one, other in zip(whole.gradients, parts.gradients):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert largest_difference(weights(first), weights(second)) < 1e-6
    assert whole.metrics[-1]["train/loss"] == pytest.approx(parts.metrics[-1]["train/loss"], abs=1e-5)


def test_micro_batches_see_the_masks_of_the_whole_batch() -> None:
    seen: dict[int, list[torch.Tensor]] = {}
    for accumulate in (1, 2, 4):
        recorder, module = run(StableDRL(), accumulate)
        masks = [
            module.likelihood.corrupt(batch["rollouts"].sequences, update=batch["update"]).masked
            for batch in recorder.batches
        ]
        seen[accumulate] = list(torch.cat(masks).split(8))
    assert same(seen[1], seen[2])
    assert same(seen[1], seen[4])
    assert not torch.equal(seen[1][0], seen[1][1])  # another update draws other masks


def test_normalizer_is_given_only_where_groups_are_split() -> None:
    given = {n: {b["group_log_normalizer"] is not None for b in run(StableDRL(), n)[0].batches} for n in (1, 2, 4)}
    assert given == {1: {False}, 2: {False}, 4: {True}}
    assert {b["group_log_normalizer"] for b in run(GRPO(), 4)[0].batches} == {None}


@pytest.mark.parametrize("updates", [1, 2, 3, 4])
def test_a_rollout_serves_its_updates(updates: int) -> None:
    recorder, _ = run(GRPO(), 1, updates=updates)
    numbers = [(int(batch["rollout_index"]), batch["update"], batch["step"]) for batch in recorder.batches]
    assert numbers == [(step // updates, step % updates, step) for step in range(2 * updates)]
    assert [("samples" in batch, bool(batch["metrics"])) for batch in recorder.batches] == [
        (step % updates == 0,) * 2 for step in range(2 * updates)
    ]
    completions = [batch["rollouts"].sequences.token_ids for batch in recorder.batches]
    assert all(torch.equal(completions[step], completions[step - step % updates]) for step in range(2 * updates))
    assert not torch.equal(completions[0], completions[-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 1}, "group_size 1 must be at least 2"),
        ({"temperature": 0.0}, "temperature 0.0 must be finite and above 0"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"temperature": float("inf")}, "temperature inf"),
        ({"updates_per_rollout": 0}, "updates_per_rollout 0 must be at least 1"),
        ({"rows_per_forward": 0}, "rows_per_forward 0 must be at least 1"),
        ({"max_ungraded_share": 1.5}, "max_ungraded_share 1.5 must lie between 0 and 1"),
        ({"max_ungraded_share": float("nan")}, "max_ungraded_share nan"),
        ({"baseline": "median"}, "center, standardize, leave_one_out"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        GroupRollout(**options)


def test_accumulation_that_does_not_divide_the_completions_names_the_valid_values() -> None:
    with pytest.raises(UserInputError, match=r"accumulate_grad_batches 3 does not divide.* 8 .*valid: 1, 2, 4, 8"):
        train(tiny_module(), accumulate=3)


@pytest.mark.parametrize("data", [{"updates_per_rollout": 3}, {"micro_batches": 1}])
def test_slots_that_do_not_match_are_refused(data: dict[str, int]) -> None:
    with pytest.raises(UserInputError, match="updates_per_rollout 2 x accumulate_grad_batches 2 needs 4"):
        train(tiny_module(), accumulate=2, data=data)


def test_another_module_is_refused() -> None:
    with pytest.raises(UserInputError, match="needs a DiffusionPolicyModule, not a DemoModel"):
        train(DemoModel())  # type: ignore[arg-type]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_rollout_metrics_are_logged_at_the_first_step_of_a_rollout_and_not_repeated(
    tmp_path: Path, accumulate: int
) -> None:
    train(tiny_module(), steps=6, updates=3, accumulate=accumulate, log_to=tmp_path)
    found = events(tmp_path)
    names = [name for name in found if name.startswith("rollout/")]
    assert len(names) == 9
    assert all({step: len(values) for step, values in found[name].items()} == {0: 1, 3: 1} for name in names)
    assert list(found["train/loss"]) == list(range(6))


def test_rollout_metrics_are_logged_whatever_log_every_n_steps_is(tmp_path: Path) -> None:
    train(tiny_module(), steps=4, updates=1, log_to=tmp_path, log_every_n_steps=50)
    assert list(events(tmp_path)["rollout/reward_mean"]) == [0, 1, 2, 3]


def test_rollback_count_changes_the_draws() -> None:
    completions = []
    for count in (0, 0, 1):
        rollout, recorder = GroupRollout(group_size=4, updates_per_rollout=1, seed=0), Recorder()
        rollout.rollback_count = count
        train(tiny_module(), recorder, steps=1, rollout=rollout)
        completions.append(recorder.batches[0]["rollouts"].sequences.completion_ids)
    assert torch.equal(completions[0], completions[1])
    assert not torch.equal(completions[0], completions[2])
