import functools
import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.errors import UserInputError
from stabledrl.grade import Grade
from stabledrl.rewards import CountdownEquation, GradedReward, RewardError, ScoredCompletions, score_completions
from stabledrl.rewards.scoring import required_columns, reward_name

PROMPTS = ["3,4:7=", "3,4:7=", "3,4:7=", "2,9:11=", "2,9:11=", "2,9:11="]
ROWS: list[dict[str, Any]] = [{"numbers": [3, 4], "target": 7}] * 3 + [{"numbers": [2, 9], "target": 11}] * 3
COMPLETIONS = ["3+4", "4+3", "2+9", "2+9", "9+2", "3+4"]
RIGHT = [True, True, False, True, True, False]


def score(*rewards: Any, weights: list[float] | None = None, **changes: Any) -> ScoredCompletions:
    arguments = {"prompts": PROMPTS, "completions": COMPLETIONS, "rows": ROWS, **changes}
    return score_completions(rewards, [1.0] * len(rewards) if weights is None else weights, **arguments)


def constant(*values: Any) -> Any:
    def given_values(completions: list[str], **columns: Any) -> list[Any]:
        return list(values)

    return given_values


def test_two_prompts_by_three_samples_meet_their_own_golds() -> None:
    scored = score(CountdownEquation("bare"))
    assert [grade.correct for grade in scored.grades] == RIGHT
    assert scored.rewards == [float(right) for right in RIGHT]
    assert scored.by_reward == {"CountdownEquation": scored.rewards}


def test_called_in_trl_convention_a_grader_says_the_same() -> None:
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    messages = [[{"role": "assistant", "content": text}] for text in COMPLETIONS]
    for completions in (COMPLETIONS, messages):
        values = CountdownEquation("bare")(prompts=PROMPTS, completions=completions, **columns)
        assert values == score(CountdownEquation("bare")).rewards


def test_grader_judges_each_completion_once() -> None:
    seen: list[str] = []

    class Counting(GradedReward):
        def grade(self, completion: str, /, **row: Any) -> Grade:
            seen.append(completion)
            return Grade(correct=None, score=0.5, answer=None, reason="counted")

    scored = score(Counting())
    assert seen == COMPLETIONS
    assert scored.rewards == [0.5] * 6


def test_anything_with_a_grade_method_explains_itself() -> None:
    class Duck:
        def grade(self, text: str, target: int) -> Grade:
            return Grade(correct=True, score=0.25, answer=text, reason=str(target))

        def __call__(self, **columns: Any) -> list[float]:
            raise AssertionError("graded twice")

    scored = score(Duck())
    assert [grade.reason for grade in scored.grades] == ["7"] * 3 + ["11"] * 3
    assert required_columns(Duck()) == {"target"}


def test_plain_function_is_called_once_with_what_it_accepts() -> None:
    calls: list[dict[str, Any]] = []
    ids = [[index] for index in range(6)]

    def everything(**columns: Any) -> list[float]:
        calls.append(columns)
        return [0.0] * 6

    def some(completions: list[str], target: list[int], completion_ids: list[list[int]]) -> list[float]:
        calls.append({"completions": completions, "target": target, "completion_ids": completion_ids})
        return [0.0] * 6

    def with_prompts(prompts: list[str], completions: list[str], factor: float = 2.0) -> list[float]:
        calls.append({"prompts": prompts, "factor": factor})
        return [0.0] * 6

    score(everything, some, with_prompts, completion_ids=ids)
    targets = [row["target"] for row in ROWS]
    assert calls == [
        {
            "prompts": PROMPTS,
            "completions": COMPLETIONS,
            "numbers": [row["numbers"] for row in ROWS],
            "target": targets,
            "completion_ids": ids,
        },
        {"completions": COMPLETIONS, "target": targets, "completion_ids": ids},
        {"prompts": PROMPTS, "factor": 2.0},
    ]


def test_columns_named_like_arguments_do_not_reach_a_function() -> None:
    names = {"prompt", "completion", "prompts", "completions", "completion_ids"}
    rows = [{**row, **dict.fromkeys(names, "wrong")} for row in ROWS]
    seen: dict[str, Any] = {}

    def reward(**columns: Any) -> list[float]:
        seen.update(columns)
        return [0.0] * 6

    score(reward, rows=rows)
    assert set(seen) == {"prompts", "completions", "numbers", "target"}
    assert seen["completions"] == COMPLETIONS


def test_conversational_prompts_come_with_message_lists() -> None:
    prompts = [[{"role": "user", "content": text}] for text in PROMPTS]
    seen: list[Any] = []

    def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        seen.extend([prompts, completions])
        return [0.0] * 6

    score(reward, prompts=prompts)
    assert seen == [prompts, [[{"role": "assistant", "content": text}] for text in COMPLETIONS]]
    assert [grade.correct for grade in score(CountdownEquation("bare"), prompts=prompts).grades] == RIGHT


@pytest.mark.parametrize("number", [0, 1, 5, 7, 12])
def test_wrong_length_names_the_function_and_both_lengths(number: int) -> None:
    with pytest.raises(UserInputError, match=rf"given_values returned {number} values for 6 completions"):
        score(constant(*[0.0] * number))


@pytest.mark.parametrize("result", [None, 0.5, (value for value in range(6))])
def test_result_that_is_no_list_names_the_function(result: Any) -> None:
    def odd(completions: list[str]) -> Any:
        return result

    with pytest.raises(UserInputError, match="reward odd returned a"):
        score(odd)


@pytest.mark.parametrize("value", ["good", [1.0], object()])
def test_value_that_is_no_number_names_the_function(value: Any) -> None:
    with pytest.raises(UserInputError, match=r"given_values returned .*expected a number"):
        score(constant(value, *[0.0] * 5))


def test_raising_function_is_named_with_its_samples() -> None:
    def broken(completions: list[str]) -> list[float]:
        return [float(completion) for completion in completions]

    with pytest.raises(RewardError, match=r"reward broken raised ValueError.*samples 0 to 5.*3\+4") as caught:
        score(broken)
    assert isinstance(caught.value.__cause__, ValueError)
    assert re.search(r"at .*test_scoring\.py:\d+, in <listcomp>$", str(caught.value))
    assert "\n" not in str(caught.value)


def test_sample_and_traceback_of_what_raised_are_logged_from_the_rewards_own_code_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(completions: list[str]) -> list[float]:
        return helper(completions[1])

    def helper(text: str) -> list[float]:
        raise KeyError(text)

    class Fragile(GradedReward):
        def grade(self, completion: str, /, **row: Any) -> Grade:
            helper(completion)
            raise AssertionError

    for reward, sample in ((broken, "samples 0 to 5, the first: '3+4'"), (Fragile(), "sample 0: '3+4'")):
        caplog.clear()
        with pytest.raises(RewardError):
            score(reward)
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        assert sample in record.message
        frames = re.findall(r"^  File .*, in (\w+)$", record.message, re.MULTILINE)
        assert frames == ["broken" if reward is broken else "grade", "helper"]
        assert record.message.splitlines()[-1].startswith("KeyError: ")


def test_raising_grader_is_named_with_its_sample() -> None:
    class Fragile(GradedReward):
        def grade(self, completion: str, /, **row: Any) -> Grade:
            if completion == "9+2":
                raise ZeroDivisionError("oops")
            return Grade(correct=True, score=1.0, answer=None, reason="")

    with pytest.raises(RewardError, match=r"reward Fragile raised ZeroDivisionError\('oops'\) on sample 4: '9\+2'"):
        score(Fragile())


def test_batch_grader_judges_all_at_once_and_is_the_same_grader_in_trl_convention() -> None:
    batches: list[int] = []

    class Batched(CountdownEquation):
        def grade_batch(self, completions: Any, rows: Any) -> list[Grade]:
            batches.append(len(completions))
            return super().grade_batch(completions, rows)

    grader = Batched("bare")
    assert score(grader).rewards == [float(right) for right in RIGHT]
    columns = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    assert grader(PROMPTS, COMPLETIONS, **columns) == [float(right) for right in RIGHT]
    assert batches == [6, 6]


@pytest.mark.parametrize("number", [0, 5, 7])
def test_batch_grader_with_too_few_or_many_verdicts_is_named(number: int) -> None:
    class Odd(CountdownEquation):
        def grade_batch(self, completions: Any, rows: Any) -> list[Grade]:
            return [Grade(correct=True, score=1.0, answer=None, reason="odd")] * number

    with pytest.raises(UserInputError, match=f"Odd returned {number} values for 6 completions"):
        score(Odd())


def test_reason_names_the_reward_that_left_a_completion_without_a_sum() -> None:
    first, gap = CountdownEquation("bare"), constant(1.0, None, *[1.0] * 4)
    scored = score(first, gap)
    assert scored.rewards[1] is None
    assert scored.grades[1].reason == "reaches the target; given_values: given_values gave None"
    assert scored.grades[0].reason == "reaches the target"
    assert score(first, gap, weights=[1.0, 0.0]).grades[1].reason == "reaches the target"


def test_unusable_column_is_the_users_error() -> None:
    with pytest.raises(UserInputError, match="whole numbers"):
        score(CountdownEquation("bare"), rows=[{**row, "target": "7"} for row in ROWS])


MISSING = [None, float("nan"), float("inf"), float("-inf"), torch.tensor(float("nan"))]


@pytest.mark.parametrize("missing", MISSING, ids=str)
def test_missing_value_leaves_the_sample_ungraded_and_no_other(missing: Any) -> None:
    scored = score(constant(1.0, missing, 0.5, 0, True, torch.tensor(2.0)))
    assert scored.rewards == [1.0, None, 0.5, 0.0, 1.0, 2.0]
    assert [grade.correct for grade in scored.grades] == [True, None, False, False, True, True]
    assert [grade.score for grade in scored.grades] == scored.rewards
    assert all(grade.answer is None for grade in scored.grades)


@pytest.mark.parametrize("missing", MISSING, ids=str)
def test_missing_value_of_weight_zero_does_not_matter(missing: Any) -> None:
    scored = score(CountdownEquation("bare"), constant(missing, *[9.0] * 5), weights=[1.0, 0.0])
    assert scored.rewards == [float(right) for right in RIGHT]
    assert scored.by_reward["given_values"] == [None, *[9.0] * 5]


def test_overflowing_sum_is_no_reward() -> None:
    assert score(constant(*[1e308] * 6), weights=[1e10]).rewards == [None] * 6


finite = st.floats(-10, 10)


@given(st.lists(st.tuples(finite, st.lists(finite, min_size=6, max_size=6)), min_size=1, max_size=3))
def test_reward_is_the_weighted_sum(rewards: list[tuple[float, list[float]]]) -> None:
    scored = score(*(constant(*values) for _, values in rewards), weights=[weight for weight, _ in rewards])
    expected = [sum(weight * values[index] for weight, values in rewards) for index in range(6)]
    assert scored.rewards == pytest.approx(expected)
    assert len(scored.by_reward) == len(rewards)


def test_first_reward_decides_the_verdict() -> None:
    first, second = CountdownEquation("bare"), constant(*[1.0] * 6)
    assert [grade.correct for grade in score(first, second).grades] == RIGHT
    assert [grade.correct for grade in score(second, first).grades] == [True] * 6


@pytest.mark.parametrize("weights", [[], [1.0], [1.0, 1.0, 1.0]])
def test_other_number_of_weights_is_refused(weights: list[float]) -> None:
    with pytest.raises(UserInputError, match=f"{len(weights)} entries for 2 rewards"):
        score(constant(*[0.0] * 6), constant(*[0.0] * 6), weights=weights)


def test_rewards_of_one_name_are_kept_apart() -> None:
    scored = score(CountdownEquation("bare"), CountdownEquation("tags"))
    assert list(scored.by_reward) == ["CountdownEquation", "CountdownEquation_2"]


def test_names_and_required_columns_are_read_from_the_signature() -> None:
    def reward(prompts: Any, completions: Any, gold: Any, unit: str = "cm", **columns: Any) -> list[float]:
        return []

    assert reward_name(reward) == "reward"
    assert reward_name(functools.partial(reward, unit="m")) == "reward"
    assert reward_name(CountdownEquation()) == "CountdownEquation"
    assert required_columns(reward) == {"gold"}
    assert required_columns(functools.partial(reward, gold=[1])) == set()
    assert required_columns(CountdownEquation()) == {"numbers", "target"}


def test_no_completions_give_no_scores() -> None:
    scored = score(CountdownEquation(), prompts=[], completions=[], rows=[])
    assert (scored.rewards, scored.grades) == ([], [])
