import itertools
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.errors import UserInputError
from stabledrl.rewards import CountdownEquation

ROW: dict[str, Any] = {"numbers": [2, 3, 4], "target": 5}


def test_exactly_the_right_expressions_are_right() -> None:
    grader = CountdownEquation(answer_format="bare")
    for left, middle, right in itertools.product([2, 3, 4, 5], repeat=3):
        for first, second in itertools.product("+-*", repeat=2):
            text = f"{left}{first}{middle}{second}{right}"
            expected = sorted([left, middle, right]) == [2, 3, 4] and eval(text) == 5
            assert grader.grade(text, **ROW).correct is expected, text


@pytest.mark.parametrize(
    ("equation", "correct"),
    [
        ("2*4-3=5", True),
        ("2*4-3 = 5", True),
        ("2*4-3=-5", False),
        ("2*4-3=6", False),
        ("2*4-3=", False),
        ("2*4-3=5=5", False),
        ("2*4-3=9-4", False),
        ("5=2*4-3", False),
        ("2*4+3=11", False),
    ],
)
def test_trailing_number_has_to_be_true(equation: str, correct: bool) -> None:
    assert CountdownEquation("bare").grade(equation, **ROW).correct is correct


def test_negative_target_can_be_named() -> None:
    assert CountdownEquation("bare").grade("2-3-4=-5", numbers=[2, 3, 4], target=-5).correct


@pytest.mark.parametrize(
    ("equation", "score"),
    [
        ("2*4-3", 1.0),
        ("2*4+3", 0.25),
        ("2*4+3=11", 0.25),
        ("2*4+3=5", 0.0),
        ("2*4", 0.0),
        ("2*4-3-3", 0.0),
        ("2*4-5", 0.0),
        ("2/(4-4)", 0.0),
        ("24-3", 0.0),
        ("2*4-", 0.0),
        ("", 0.0),
    ],
)
def test_partial_score_needs_a_valid_expression_of_exactly_the_numbers(equation: str, score: float) -> None:
    grade = CountdownEquation("bare", partial_score=0.25).grade(equation, **ROW)
    assert grade.score == score
    assert grade.correct is (score == 1.0)


def test_equal_numbers_count_as_often_as_given() -> None:
    grader = CountdownEquation("bare")
    assert grader.grade("3+3-1", numbers=[1, 3, 3], target=5).correct
    assert not grader.grade("3+1+1", numbers=[1, 3, 3], target=5).correct


@pytest.mark.parametrize("partial_score", [-0.1, 1.0, float("nan")])
def test_partial_score_that_equals_success_is_refused(partial_score: float) -> None:
    with pytest.raises(UserInputError, match="partial_score"):
        CountdownEquation(partial_score=partial_score)


@pytest.mark.parametrize("row", [{"numbers": "[2, 3]", "target": 5}, {"numbers": ["2"], "target": 5}])
@pytest.mark.parametrize("target", [5, "5"])
def test_columns_left_as_text_are_refused(row: dict[str, Any], target: Any) -> None:
    with pytest.raises(UserInputError, match="whole numbers"):
        CountdownEquation().grade("<answer>2+3</answer>", **{**row, "target": target})


@given(st.text() | st.text(st.sampled_from("<answer>/0123456789+-*/()=\\boxed{} "), max_size=400))
def test_no_completion_raises(text: str) -> None:
    for answer_format in ("tags", "bare"):
        grade = CountdownEquation(answer_format).grade(text, **ROW)
        assert grade.score in (0.0, 1.0)


@pytest.mark.parametrize(
    "text", ["9**9**9**9", "(" * 100_000, "9" * 100_000, "-" * 100_000, "1+" * 50_000, "(" * 100 + "2" + ")" * 100]
)
def test_grading_takes_milliseconds(text: str) -> None:
    started = time.process_time()
    for _ in range(10):
        assert not CountdownEquation().grade(f"<answer>{text}</answer>", **ROW).correct
    assert time.process_time() - started < 0.5
