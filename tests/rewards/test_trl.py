"""TRL's own reward functions plug in unchanged."""

from typing import Any

import pytest

from stabledrl.rewards import Isolated, score_completions
from stabledrl.rewards.scoring import required_columns

rewards = pytest.importorskip("trl.rewards")

COMPLETIONS = [
    r"<think>easy</think> it is $\boxed{\frac{1}{2}}$",
    r"<think>hard</think> it is $\boxed{\frac{1}{3}}$",
    r"it is $\boxed{0.5}$",
]
PROMPTS = [[{"role": "user", "content": "What is half of 1?"}]] * 3
ROWS = [{"solution": r"$\frac{1}{2}$"}] * 3


def score(*functions: Any) -> dict[str, list[float | None]]:
    weights = [1.0] * len(functions)
    ids = [[1]] * 3
    return score_completions(functions, weights, PROMPTS, COMPLETIONS, ROWS, completion_ids=ids).by_reward


def test_functions_of_trl_give_their_values() -> None:
    assert required_columns(rewards.accuracy_reward) == {"solution"}
    assert score(rewards.accuracy_reward, rewards.think_format_reward) == {
        "accuracy_reward": [1.0, 0.0, 1.0],
        "think_format_reward": [1.0, 1.0, 0.0],
    }


def test_functions_that_ask_for_token_ids_get_them() -> None:
    overlong = rewards.get_soft_overlong_punishment(max_completion_len=10, soft_punish_cache=5)
    assert list(score(overlong).values()) == [[0, 0, 0]]


@pytest.mark.slow
def test_functions_of_trl_run_in_their_own_process() -> None:
    assert score(Isolated(rewards.accuracy_reward, deadline=120)) == {"accuracy_reward": [1.0, 0.0, 1.0]}
