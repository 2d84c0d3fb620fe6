"""What becomes of a rollout whose rewards have gaps."""

from typing import Any

import pytest
from tests.rewards import hostile
from tests.test_experience import collect, prompts
from tests.training import Digits

from stabledrl.errors import UserInputError
from stabledrl.rewards import Isolated, RewardError, score_completions


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf"), float("-inf")], ids=str)
def test_a_missing_reward_leaves_the_baseline_has_no_advantage_and_is_counted(missing: Any) -> None:
    def gap(completions: list[str]) -> list[Any]:
        return [1.0, missing, 0.0, 2.0, 4.0, 6.0]

    experience = collect(prompts(5, 2), Digits(gap))
    assert experience.rollouts.advantages.tolist() == [0.5, 0, -0.5, -2, 0, 2]
    assert experience.rollouts.graded.tolist() == [True, False, True, True, True, True]
    assert experience.metrics["rollout/ungraded"] == pytest.approx(1 / 6)
    assert experience.metrics["rollout/reward_mean"] == pytest.approx(13 / 5)


def test_a_hanging_reward_costs_its_samples_and_the_rollout_goes_on() -> None:
    reward = Isolated(hostile.hang_on_five, deadline=1, workers=2)
    experience = collect(prompts(5, 2), Digits(reward))
    assert [sample.reward for sample in experience.samples] == [None] * 3 + [1.0] * 3
    assert {sample.reason for sample in experience.samples[:3]} == {
        "hang_on_five no verdict within 1 s, its process was killed"
    }
    assert experience.rollouts.advantages.tolist() == [0.0] * 6
    assert experience.rollouts.graded.tolist() == [False] * 3 + [True] * 3
    assert [sample.reward for sample in collect(prompts(2), Digits(reward)).samples] == [1.0] * 3


def test_a_reward_that_always_hangs_stops_the_run_with_the_reason() -> None:
    reward = Isolated(hostile.hang_on_five, deadline=0.5, workers=2)
    with pytest.raises(UserInputError, match=r"100% .*no verdict within 0\.5 s"):
        collect(prompts(5), Digits(reward))


def test_a_raising_reward_stops_the_rollout_unless_it_is_to_be_skipped() -> None:
    with pytest.raises(RewardError, match="reward nobody raised LookupError: nobody there on sample 0"):
        collect(prompts(2), Digits(Isolated(hostile.nobody)))
    with pytest.raises(UserInputError, match=r"100% .*nobody raised LookupError"):
        collect(prompts(2), Digits(Isolated(hostile.nobody, on_error="skip")))


@pytest.mark.parametrize("error", [SystemExit(3), ValueError("no"), MemoryError()])
def test_whatever_a_reward_raises_is_told_with_its_name(error: BaseException) -> None:
    def leaves(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        raise error

    with pytest.raises(RewardError, match="leaves"):
        score_completions([leaves], [1.0], ["p"], ["c"], [{}])
