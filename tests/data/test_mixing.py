from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stabledrl.data.mixing import TaskMixture
from stabledrl.errors import UserInputError

SIZES = {"a": 40, "b": 7, "c": 100}
TASKS = [name for name, size in SIZES.items() for _ in range(size)]


def mixture(weights: dict[str, float], prompts: int = 8, seed: int = 0) -> TaskMixture:
    return TaskMixture(TASKS, weights, prompts, seed)


@pytest.mark.parametrize("weights", [{"a": 0.1, "b": 0.2, "c": 0.7}, {"c": 3, "b": 1, "a": 2}])
def test_every_rollout_holds_each_task_s_share_rounded_and_on_average_exactly(weights: dict[str, float]) -> None:
    mixed = mixture(weights)
    total = sum(weights.values())
    counts = [Counter(TASKS[row] for row in mixed(index)) for index in range(600)]
    for name, weight in weights.items():
        share = 8 * weight / total
        assert all(abs(count[name] - share) < 1 for count in counts)
        assert sum(count[name] for count in counts) / 600 == pytest.approx(share, abs=0.06)


def test_whole_shares_are_exact_in_every_rollout() -> None:
    mixed = TaskMixture(TASKS, {"a": 0.1, "b": 0.2, "c": 0.7}, 10, 0)
    for index in range(200):
        assert Counter(TASKS[row] for row in mixed(index)) == {"a": 1, "b": 2, "c": 7}


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 12), st.tuples(*[st.floats(0.01, 100)] * 3), st.integers(0, 99))
def test_a_rollout_is_a_function_of_its_number_and_holds_no_prompt_twice(
    index: int, prompts: int, weights: tuple[float, float, float], seed: int
) -> None:
    if prompts * weights[1] / sum(weights) > 7:
        return
    first, second = (mixture(dict(zip("abc", weights)), prompts, seed) for _ in range(2))
    for other in range(5):
        second(other)
    rows = first(index)
    assert len(rows) == len(set(rows)) == prompts
    assert second(index) == rows


def test_all_prompts_of_a_task_come_up_equally_often() -> None:
    mixed = mixture({"a": 1, "b": 1, "c": 2}, 4)
    shown = Counter(row for index in range(1500) for row in mixed(index))
    assert set(shown) == set(range(len(TASKS)))
    for rows in (range(40), range(40, 47), range(47, 147)):
        counts = [shown[row] for row in rows]
        assert max(counts) < 1.5 * min(counts)


def test_a_pass_over_a_task_shows_every_prompt_once() -> None:
    mixed = TaskMixture(["a"] * 12 + ["b"] * 12, {"a": 1, "b": 1}, 4, 0)
    for turn in range(3):
        shown = [row for index in range(6 * turn, 6 * turn + 6) for row in mixed(index)]
        assert sorted(shown) == list(range(24))


def test_order_depends_on_the_seed_and_leaves_global_random_state_alone() -> None:
    state = torch.get_rng_state()
    orders = {str([mixture(dict.fromkeys("abc", 1.0), seed=seed)(index) for index in range(5)]) for seed in range(4)}
    assert len(orders) == 4
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("weights", [{}, {"a": 1.0}, dict.fromkeys("abcd", 1.0), dict.fromkeys("abC", 1.0)])
def test_weights_of_other_tasks_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(UserInputError, match=r"the tasks to train on are \['a', 'b', 'c'\]"):
        mixture(weights)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_that_are_no_shares_are_refused(bad: float) -> None:
    with pytest.raises(UserInputError, match=f"task_weights has {bad}"):
        mixture({"a": 1.0, "b": bad, "c": 1.0})


def test_a_task_with_too_few_prompts_for_its_share_is_refused() -> None:
    with pytest.raises(UserInputError, match=r"task 'b' has 7 prompts, fewer than the 8 .* lower its weight 99"):
        mixture({"a": 1, "b": 99, "c": 1})


def test_a_vanishing_share_is_no_error() -> None:
    assert len(mixture({"a": 1e-9, "b": 1e-9, "c": 1.0})(3)) == 8
