import pytest

from stabledrl.errors import UserInputError
from stabledrl.rewards.overlong import OverlongPenalty
from stabledrl.rewards.scoring import required_columns, score_completions


def penalties(reward: OverlongPenalty, lengths: list[int]) -> list[float | None]:
    return reward(["p"] * len(lengths), ["c"] * len(lengths), completion_ids=[[1] * n for n in lengths])


def test_it_falls_linearly_over_the_buffer() -> None:
    found = penalties(OverlongPenalty(max_length=20, buffer=4), [1, 16, 17, 18, 20, 25])
    assert found == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]


def test_without_buffer_only_what_is_longer_is_punished() -> None:
    assert penalties(OverlongPenalty(max_length=20, buffer=0), [20, 21]) == [0.0, -1.0]


def test_it_needs_no_column_of_the_data_and_adds_to_the_grader() -> None:
    reward = OverlongPenalty(max_length=4, buffer=2)
    assert required_columns(reward) == set()

    def right(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
        return [1.0] * len(completions)

    scored = score_completions(
        [right, reward], [1.0, 0.5], prompts=["p", "p"], completions=["c", "c"], rows=[{}, {}],
        completion_ids=[[1, 2], [1, 2, 3, 4]],
    )  # fmt: skip
    assert scored.rewards == [1.0, 0.5]


@pytest.mark.parametrize(("max_length", "buffer"), [(0, 0), (4, 5), (4, -1)])
def test_values_out_of_range_are_named(max_length: int, buffer: int) -> None:
    with pytest.raises(UserInputError, match="max_length"):
        OverlongPenalty(max_length=max_length, buffer=buffer)
