import pytest

from stabledrl.data.rewarding import resolve_rewards
from stabledrl.errors import UserInputError
from stabledrl.rewards import SudokuGrid

GRADER = SudokuGrid()


def test_the_default_has_weight_one() -> None:
    assert resolve_rewards(GRADER, None, None) == ([GRADER], [1.0])


@pytest.mark.parametrize(
    ("rewards", "weights", "words"),
    [
        ([], None, "rewards is empty"),
        ([GRADER], [1.0, 2.0], "2 entries for 1 rewards"),
        ([GRADER], [float("nan")], "holds nan"),
        ([GRADER], [float("-inf")], "holds -inf"),
    ],
)
def test_rewards_and_weights_that_make_no_sum_are_refused(rewards: list, weights: list, words: str) -> None:
    with pytest.raises(UserInputError, match=words):
        resolve_rewards(GRADER, rewards, weights)
