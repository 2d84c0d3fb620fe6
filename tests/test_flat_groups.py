"""Groups whose rewards are all equal: kept, dropped or drawn anew."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.experiences import collect, prompts
from tests.objectives.batches import ToyPolicy, rollouts
from tests.training import Digits, Recorder, tiny_module, train

from stabledrl.callbacks import GroupRollout
from stabledrl.errors import UserInputError
from stabledrl.flat_groups import drop_flat_groups, flat_rows
from stabledrl.objectives import DMPO, GRPO, StableDRL
from stabledrl.protocols import Objective

NAN = float("nan")


def test_flat_rows_are_whole_groups_without_two_different_rewards() -> None:
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.5, NAN, NAN, NAN, 0.5, 0.5])
    assert flat_rows(rewards, 2).tolist() == [0, 1, 4, 5, 6, 7, 8, 9]
    assert flat_rows(torch.tensor([0.0, 1.0]), 2).tolist() == []


def mixed(groups: int = 3) -> Any:
    """Four groups of two, of which the first and third are flat; the second's last row is not graded."""
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.5, 0.5, 0.3, 0.9], dtype=torch.float64)
    index = torch.arange(8) // 2
    advantages = torch.tensor([0.0, 0.0, -0.5, 0.5, 0.0, 0.0, -0.3, 0.3], dtype=torch.float64)
    policy = ToyPolicy(8)
    batch = rollouts(policy().elbo.detach() - 0.1 * torch.arange(8), advantages, index)
    return policy, replace(batch, rewards=rewards)


@pytest.mark.parametrize("objective", [GRPO(), StableDRL(surrogate="elbo"), DMPO()], ids=lambda it: type(it).__name__)
def test_dropping_gives_the_loss_of_the_groups_that_teach_alone(objective: Objective) -> None:
    policy, batch = mixed()
    dropped = drop_flat_groups(batch)
    rows = torch.tensor([2, 3, 6, 7])
    alone = replace(batch.select(rows), group_index=torch.tensor([0, 0, 1, 1]), totals=dropped.totals)
    found, expected = objective(policy(), dropped), objective(policy().select(rows), alone)
    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(policy.gradient(found.loss), policy.gradient(expected.loss))
    assert (dropped.totals.rows, dropped.totals.groups, dropped.totals.tokens) == (4, 2, 4)


@pytest.mark.parametrize("flat", [True, False])
def test_nothing_is_dropped_where_all_or_no_groups_teach(flat: bool) -> None:
    _, batch = mixed()
    batch = replace(batch, rewards=torch.ones(8) if flat else torch.arange(8.0))
    assert drop_flat_groups(batch) is batch


class FlatUntil:
    """Gives the group of prompt 3 one reward until it has been asked a number of times; others vary."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self, prompts: list[str], completions: list[str], gold: list[str]) -> list[float]:
        self.left -= 1
        flat = self.left >= 0
        return [0.5 if flat and own == "3" else row / 10 for row, own in enumerate(gold)]


@pytest.mark.parametrize(("calls", "drawn"), [(0, 0.0), (1, 0.5), (2, 0.5), (9, 0.5)])
def test_flat_groups_are_drawn_anew_and_others_are_not(calls: int, drawn: float) -> None:
    batch = prompts(3, 5)
    kept = collect(batch, Digits(FlatUntil(calls)))
    found = collect(batch, Digits(FlatUntil(calls)), flat_groups="resample", max_resamples=3)
    assert found.metrics["rollout/resampled_groups"] == drawn
    assert torch.equal(found.rollouts.sequences.token_ids[3:], kept.rollouts.sequences.token_ids[3:])
    times = min(calls, 3)
    assert [sample.sample_index for sample in found.samples] == [3 * times, 3 * times + 1, 3 * times + 2, 0, 1, 2]
    assert (found.rollouts.rewards[:3].unique().numel() > 1) == (calls <= 3)
    assert found.rollouts.old.elbo.shape == (6,)


def test_draws_are_bounded_and_new_ones() -> None:
    batch = prompts(3, 5)
    reward = FlatUntil(100)
    found = collect(batch, Digits(reward), flat_groups="resample", max_resamples=2)
    assert reward.left == 100 - 3
    once = collect(batch, Digits(FlatUntil(100)))
    assert not torch.equal(found.rollouts.sequences.row_keys[:3], once.rollouts.sequences.row_keys[:3])


@pytest.mark.parametrize("flat_groups", ["drop", "resample"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_run_with_them_trains_and_reports(flat_groups: Any, accumulate: int) -> None:
    recorder = Recorder()
    rollout = GroupRollout(group_size=4, temperature=1.0, updates_per_rollout=2, seed=0, flat_groups=flat_groups)
    train(
        tiny_module(), recorder, steps=4, accumulate=accumulate, rollout=rollout, tasks=[Digits(FlatUntil(10**6))],
        prompts=8,
    )  # fmt: skip
    assert len(recorder.gradients) == 4
    assert recorder.metrics[-1]["rollout/resampled_groups"] == (0.125 if flat_groups == "resample" else 0)
    assert recorder.batches[0]["rollouts"].totals.groups == (7 if flat_groups == "drop" else 8)


def test_dropping_changes_no_gradient_with_the_number_of_micro_batches() -> None:
    gradients = []
    for accumulate in (1, 4):
        recorder = Recorder()
        rollout = GroupRollout(group_size=4, temperature=1.0, updates_per_rollout=1, seed=0, flat_groups="drop")
        tasks = [Digits(FlatUntil(10**6))]
        train(tiny_module(), recorder, steps=1, accumulate=accumulate, rollout=rollout, tasks=tasks, prompts=8)
        gradients.append(torch.cat([gradient.flatten() for gradient in recorder.gradients[0]]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "value"), [("flat_groups", "refill"), ("max_resamples", 0)])
def test_values_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(UserInputError, match=f"{name} {value!r}"):
        GroupRollout(**{name: value})
