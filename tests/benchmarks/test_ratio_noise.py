"""The benchmark of the masking laws, in small."""

import pytest
import torch
from benchmarks.ratio_noise import measure_law, sample, table, updated
from tests.cli.runs import CONFIGS

from stabledrl.backbones import Policy, load_policy
from stabledrl.types import RolloutBatch


@pytest.fixture(scope="module")
def start() -> tuple[Policy, RolloutBatch]:
    policy = load_policy(str(CONFIGS.parent / "checkpoints/tiny-sudoku"))
    return policy, sample(policy, 2, 0)


def test_shared_masks_leave_less_noise_and_none_where_nothing_moved(start: tuple[Policy, RolloutBatch]) -> None:
    policy, rollouts = start
    moved = updated(policy, rollouts, 1)
    still = list(measure_law("uniform", 2, policy, updated(policy, rollouts, 0), rollouts.sequences, 6))
    anew, shared = measure_law("uniform", 2, policy, moved, rollouts.sequences, 6)
    assert [found.shares_masks for found in still] == [False, True]
    assert still[0].sd_log_ratio > 0.1
    assert still[1].sd_log_ratio == 0
    assert 0 < shared.sd_log_ratio < 0.5 * anew.sd_log_ratio
    assert shared.sd_log_ratio_of_one == pytest.approx(2**0.5 * shared.sd_log_ratio)
    assert anew.unbiased
    assert table([anew, shared]).count("\n") == 3


def test_the_policy_that_sampled_is_left_as_it_was(start: tuple[Policy, RolloutBatch]) -> None:
    policy, rollouts = start
    before = {name: weight.clone() for name, weight in policy.state_dict().items()}
    updated(policy, rollouts, 1)
    assert all(torch.equal(weight, before[name]) for name, weight in policy.state_dict().items())
