import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.advantages import group_advantages, zero_variance_groups

BASELINES = ("center", "standardize", "leave_one_out")
NAN, INF = float("nan"), float("inf")


def by_hand(rewards: list[float], baseline: str) -> list[float]:
    """The definition, for the graded rewards of one group with at least two different values."""
    n = len(rewards)
    mean = sum(rewards) / n
    if baseline == "center":
        return [r - mean for r in rewards]
    if baseline == "standardize":
        std = (sum((r - mean) ** 2 for r in rewards) / n) ** 0.5
        return [(r - mean) / (std + 1e-4) for r in rewards]
    return [r - (sum(rewards) - r) / (n - 1) for r in rewards]


def advantages(rewards, groups, baseline, *, graded=None, dtype=torch.float32):
    rewards = torch.tensor(rewards, dtype=dtype)
    graded = rewards.isfinite() if graded is None else torch.tensor(graded)
    groups = torch.tensor(groups)
    return group_advantages(rewards, graded, groups, int(groups.max()) + 1, baseline=baseline)


@pytest.mark.parametrize("baseline", BASELINES)
def test_matches_the_definition_in_any_row_order_and_with_groups_of_unequal_size(baseline):
    rewards = {0: [0.0, 1.0, 0.25], 1: [2.0, -1.0], 2: [0.5, 0.5, 0.75, 0.1, 0.0]}
    rows = [(g, r, a) for g, group in rewards.items() for r, a in zip(group, by_hand(group, baseline))]
    rows = [rows[i] for i in torch.randperm(len(rows)).tolist()]
    group, reward, expected = zip(*rows)
    torch.testing.assert_close(advantages(reward, group, baseline), torch.tensor(expected))


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -0.7, 1e-30, 3e38])
@pytest.mark.parametrize("size", [2, 3, 7, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_have_exactly_zero_advantage_whatever_rounding_does_to_their_mean(baseline, value, size, dtype):
    result = advantages([value] * size + [0.0, 1.0], [0] * size + [1, 1], baseline, dtype=dtype)
    assert result[:size].tolist() == [0.0] * size
    assert result[size:].tolist() != [0.0, 0.0]


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("missing", [NAN, INF, -INF])
@pytest.mark.parametrize("graded", [None, [True] * 5])
def test_rewards_that_are_not_finite_leave_the_baseline_and_get_zero(baseline, missing, graded):
    expected = by_hand([0.0, 1.0, 0.5], baseline)
    result = advantages([0.0, missing, 1.0, 0.5, missing], [0] * 5, baseline, graded=graded).tolist()
    assert result == pytest.approx([expected[0], 0.0, expected[1], expected[2], 0.0])


@pytest.mark.parametrize("baseline", BASELINES)
def test_rows_marked_ungraded_are_out_even_if_they_hold_a_number(baseline):
    result = advantages([0.0, 1.0, 99.0], [0, 0, 0], baseline, graded=[True, True, False])
    assert result.tolist() == pytest.approx([*by_hand([0.0, 1.0], baseline), 0.0])


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("rewards", [[1.0], [1.0, NAN], [NAN, NAN], [NAN]])
def test_a_group_with_fewer_than_two_graded_rows_has_zero_advantage(baseline, rewards):
    assert advantages(rewards, [0] * len(rewards), baseline).tolist() == [0.0] * len(rewards)


@pytest.mark.parametrize("baseline", BASELINES)
def test_large_rewards_neither_overflow_nor_lose_their_differences(baseline):
    near = advantages([1e6, 1e6 + 1, 1e6 + 2], [0, 0, 0], baseline)
    assert near.tolist() == pytest.approx(by_hand([0.0, 1.0, 2.0], baseline))
    huge = advantages([3e38, 1e38, 3e38], [0, 0, 0], baseline)  # their sum is beyond float32
    scale = 1.0 if baseline == "standardize" else 1e38
    assert (huge / scale).tolist() == pytest.approx(by_hand([3.0, 1.0, 3.0], baseline), rel=1e-3)


@given(
    rewards=st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=24),
    groups=st.randoms(use_true_random=False),
    baseline=st.sampled_from(BASELINES),
)
def test_advantages_of_a_group_sum_to_zero_and_follow_the_rewards_order(rewards, groups, baseline):
    index = torch.tensor([groups.randrange(4) for _ in rewards])
    reward = torch.tensor(rewards)
    result = group_advantages(reward, torch.ones(len(reward), dtype=torch.bool), index, 4, baseline=baseline)
    for group in range(4):
        rows = index == group
        assert result[rows].double().sum().abs() <= 1e-5 * max(1.0, result[rows].abs().sum().item())
        order = reward[rows].argsort()
        assert (result[rows][order].diff() >= 0).all()


@pytest.mark.parametrize("baseline", BASELINES)
def test_groups_do_not_see_each_other(baseline):
    alone = advantages([0.0, 1.0, 1.0], [0, 0, 0], baseline)
    for other in ([5.0, -5.0], [NAN, 3.0], [2.0, 2.0]):
        assert torch.equal(advantages([0.0, 1.0, 1.0, *other], [0, 0, 0, 1, 1], baseline)[:3], alone)


def test_a_group_without_signal_is_one_whose_graded_rewards_do_not_differ():
    rewards = torch.tensor([1.0, 1.0, 0.0, 1.0, NAN, NAN, 0.5, NAN, 1.0, 1.0])
    groups = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    graded = rewards.isfinite()
    graded[9] = False
    result = zero_variance_groups(rewards, graded, groups, 6)
    assert result.tolist() == [True, False, True, True, True, True]  # equal, different, none, one, one, no row


@pytest.mark.parametrize("missing", [NAN, INF, -INF])
def test_a_reward_that_is_not_finite_makes_no_difference_between_rewards(missing):
    rewards, groups = torch.tensor([1.0, missing, 1.0, 0.0, missing, 1.0]), torch.tensor([0, 0, 0, 1, 1, 1])
    result = zero_variance_groups(rewards, torch.ones(6, dtype=torch.bool), groups, 2)
    assert result.tolist() == [True, False]


def test_the_smallest_difference_between_rewards_is_a_signal():
    rewards = torch.tensor([1.0, 1.0 + 2**-23, 0.1, 0.1])
    groups = torch.tensor([0, 0, 1, 1])
    assert zero_variance_groups(rewards, torch.ones(4, dtype=torch.bool), groups, 2).tolist() == [False, True]
