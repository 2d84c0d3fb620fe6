import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.errors import UserInputError
from stabledrl.rewards import FormatTags

PARTS = ["<think>", "</think>", "<answer>", "</answer>", "x", " "]


@pytest.mark.parametrize(
    "text",
    [
        "<think>a</think><answer>b</answer>",
        "\n <think>\na\n</think>\n\n<answer> b </answer>\n",
        "<think>a < b > c </thin></think><answer><b></answer>",
    ],
)
def test_the_shape_scores_one_whatever_the_content(text: str) -> None:
    grade = FormatTags().grade(text)
    assert (grade.correct, grade.score, grade.answer) == (True, 1.0, None)


@pytest.mark.parametrize(
    ("text", "score", "reason"),
    [
        ("", 0, "<think> is missing"),
        ("b", 0, "<think> is missing"),
        ("<answer>b</answer>", 0.25, "<think> is missing"),
        ("<think>a<answer>b</answer>", 0.375, "</think> is missing"),
        ("<think>a</think><answer>b", 0.375, "</answer> is missing"),
        ("<think>a</think><think>a</think><answer>b</answer>", 0.25, "<think> occurs more than once"),
        ("<think><answer>b</answer></think>", 0.5, "the tags are in another order"),
        ("<answer>b</answer><think>a</think>", 0.5, "another order|text before"),
        ("hm <think>a</think><answer>b</answer>", 0.5, "text before <think>"),
        ("<think>a</think> so <answer>b</answer>", 0.5, "text before <answer>"),
        ("<think>a</think><answer>b</answer> done", 0.5, "text after </answer>"),
        ("<think></think><answer>b</answer>", 0.5, "nothing before </think>"),
        ("<think>a</think><answer> </answer>", 0.5, "nothing before </answer>"),
        ("<THINK>a</THINK><answer>b</answer>", 0.25, "<think> is missing"),
    ],
)
def test_everything_else_scores_part_and_says_why(text: str, score: float, reason: str) -> None:
    grade = FormatTags().grade(text)
    assert (grade.correct, grade.score) == (False, score)
    assert any(part in grade.reason for part in reason.split("|")), grade.reason
    assert FormatTags(partial_score=0).grade(text).score == 0


def test_of_all_short_texts_exactly_those_of_the_shape_are_right() -> None:
    texts = ["".join(parts) for parts in itertools.product(PARTS[:-1], repeat=6)]
    right = [text for text in texts if FormatTags().grade(text).correct]
    assert right == ["<think>x</think><answer>x</answer>"]


def test_tags_are_of_the_users_choice() -> None:
    own = FormatTags(["plan", "code", "answer"], partial_score=0.9)
    assert own.grade("<plan>a</plan><code>b</code><answer>c</answer>").score == 1
    assert own.grade("<plan>a</plan><answer>c</answer>").score == pytest.approx(0.6)
    assert FormatTags(["answer"]).grade("<answer>c</answer>").correct


@pytest.mark.parametrize("tags", [[], ["a", "a"], ["<think>"], [""], ["a b"], ["a", "/a"], "think answer"])
def test_tags_that_are_none_are_refused(tags: Any) -> None:
    with pytest.raises(UserInputError, match="tags"):
        FormatTags(tags)


@pytest.mark.parametrize("partial_score", [-0.1, 1.0, float("nan")])
def test_partial_score_that_equals_success_is_refused(partial_score: float) -> None:
    with pytest.raises(UserInputError, match="partial_score"):
        FormatTags(partial_score=partial_score)


@given(st.text() | st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
def test_scores_are_within_bounds_and_only_the_shape_is_one(text: str) -> None:
    grade = FormatTags().grade(text)
    assert grade.score is not None
    assert 0 <= grade.score <= 1
    assert grade.correct is (grade.score == 1)
