"""Rollouts that teach nothing or break arithmetic, trained on with every objective of the package: no one is named."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from tests.test_learning import estimator_for, shipped_objectives
from tests.training import (
    Digits,
    Fixed,
    Recorder,
    Scripted,
    all_equal,
    level,
    same,
    tiny_module,
    tiny_policy,
    train,
    weights,
)

from stabledrl.callbacks import GroupRollout
from stabledrl.protocols import Objective
from stabledrl.types import LikelihoodEstimate

EVERY = pytest.mark.parametrize("objective", shipped_objectives(), ids=lambda objective: type(objective).__name__)
LOGGED = ("train/loss", "train/grad_norm_clipped")


class Moved(Callback):
    """Has the old policy's log-likelihoods differ from the current ones by a number, of either sign in turn."""

    def __init__(self, *shifts: float) -> None:
        self.shifts = shifts

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: dict[str, Any], batch_idx: int) -> None:
        rollouts = batch["rollouts"]
        shift = torch.tensor([self.shifts[row % len(self.shifts)] for row in range(len(rollouts))])
        old: LikelihoodEstimate = rollouts.old
        lengths = rollouts.sequences.lengths
        batch["rollouts"] = replace(
            rollouts,
            old=replace(
                old,
                elbo=old.elbo - shift,
                eubo=None if old.eubo is None else old.eubo - shift,
                token_elbo=old.token_elbo - (shift / lengths)[:, None],
                token_log_probs=old.token_log_probs - shift[:, None, None],
            ),
        )


def run(objective: Objective, *callbacks: Callback, sampler: Any = None, **options: Any) -> tuple[Any, Any, Recorder]:
    """Weights before and after, and what was logged. A gradient that is not finite is an error here."""
    module = tiny_module(
        policy=tiny_policy(), objective=objective, likelihood=estimator_for(objective),
        **({} if sampler is None else {"sampler": sampler}),
    )  # fmt: skip
    before, recorder = weights(module), Recorder()
    trainer = train(module, *callbacks, recorder, **{"steps": 4, **options})
    assert trainer.global_step == options.get("steps", 4)
    after = weights(module)
    assert all(value.isfinite().all() for value in after.values())
    assert all(torch.tensor(recorder.metrics[-1][name]).isfinite() for name in LOGGED)
    return before, after, recorder


@EVERY
@pytest.mark.parametrize("accumulate", [1, 2])
def test_where_all_rewards_are_equal_nothing_moves_and_every_step_counts(objective: Objective, accumulate: int) -> None:
    before, after, recorder = run(objective, tasks=[Digits(all_equal)], accumulate=accumulate)
    assert same(before, after)
    assert recorder.metrics[-1]["rollout/zero_variance_groups"] == 1.0


@EVERY
@pytest.mark.parametrize("missing", [None, float("nan"), float("inf"), float("-inf")], ids=str)
def test_a_missing_reward_is_left_out_and_the_others_teach(objective: Objective, missing: float | None) -> None:
    script = Scripted(lambda count: [missing if row % 4 == 0 else float(row % 4) for row in range(count)])
    before, after, recorder = run(objective, tasks=[Digits(script)], steps=2)
    assert not same(before, after)
    assert recorder.metrics[0]["rollout/ungraded"] == 0.25


@EVERY
def test_no_reward_at_all_moves_nothing(objective: Objective) -> None:
    rollout = GroupRollout(group_size=4, updates_per_rollout=2, max_ungraded_share=1.0, seed=0)
    script = Scripted(lambda count: [None] * count)
    before, after, _ = run(objective, rollout=rollout, tasks=[Digits(script)], steps=2)
    assert same(before, after)


@EVERY
def test_completions_of_an_end_token_alone_are_one_scored_token(objective: Objective) -> None:
    _, _, recorder = run(objective, sampler=OnlyEnd(), tasks=[Digits(Scripted(level(0.5)))], steps=2)
    assert recorder.batches[0]["rollouts"].sequences.lengths.tolist() == [1] * 8


class OnlyEnd(Fixed):
    """Writes an end token first; what follows it is nothing."""

    provides = frozenset({"step_map"})

    def __init__(self) -> None:
        super().__init__(0, 5, 5, 5)


@EVERY
@pytest.mark.parametrize(
    "shifts",
    [(1000.0,), (-1000.0,), (1000.0, -1000.0), (-1000.0, -1000.0, 1000.0, 0.0), (1e30, -1e30)],
    ids=str,
)
def test_log_ratios_of_any_size_give_finite_updates(objective: Objective, shifts: tuple[float, ...]) -> None:
    _, _, recorder = run(objective, Moved(*shifts), tasks=[Digits(Scripted(level(0.5)))], steps=2)
    if objective.uses_ratio:
        # What was there before any clip, per token where that is what is clipped.
        seen = [abs(recorder.metrics[-1][f"train/log_ratio_{name}"]) for name in ("mean", "std")]
        assert max(seen) > 100


def test_every_objective_of_the_package_is_here() -> None:
    assert len(shipped_objectives()) >= 10
