import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.rewards.answer_text import find_answer, last_box, last_tag

FRAGMENTS = ["<answer>", "</answer>", "\\boxed{", "\\boxed", "{", "}", "\\", "(", "7", " ", "x", "<", "\n"]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<answer>7</answer>", "7"),
        ("<answer>7</answer> hm <answer>42</answer>", "42"),
        ("<answer>7</answer> hm <answer>42", "7"),
        ("<answer>7</answer> or not </answer>", "7"),
        ("<answer>1 <answer>7</answer>", "7"),
        ("<answer></answer>", ""),
        ("</answer><answer>", None),
        ("<answer>7", None),
        ("7</answer>", None),
        ("", None),
    ],
)
def test_last_complete_tag_wins(text: str, content: str | None) -> None:
    assert last_tag(text) == content


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{4} wait, \boxed{5}", "5"),
        (r"\boxed{\frac{1}{1+\frac{1}{2}}}", r"\frac{1}{1+\frac{1}{2}}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{4} \boxed{5", "4"),
        (r"\boxed{5", None),
        (r"\boxed{5\}", None),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed {5}", "5"),
        ("} \\boxed{5} {", "5"),
        ("boxed{5} {5}", None),
    ],
)
def test_last_balanced_box_wins(text: str, content: str | None) -> None:
    assert last_box(text) == content


def test_tag_wins_over_boxes_outside_and_box_wins_inside() -> None:
    assert find_answer(r"\boxed{1} <answer> 2 </answer> \boxed{3}", "tags") == "2"
    assert find_answer(r"<answer>so \boxed{ 2 } it is</answer> \boxed{3}", "tags") == "2"


def test_without_tag_a_box_counts_and_loose_text_does_not() -> None:
    assert find_answer(r"the answer is \boxed{2}", "tags") == "2"
    assert find_answer("the answer is 2", "tags") is None


def test_bare_completion_is_the_answer() -> None:
    assert find_answer(" 1+2\n", "bare") == "1+2"
    assert find_answer(r"\boxed{1+2}", "bare") == "1+2"
    assert find_answer("", "bare") == ""


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join))
def test_answer_is_always_a_part_of_the_text(text: str) -> None:
    for answer_format in ("tags", "bare"):
        answer = find_answer(text, answer_format)
        assert answer is None or answer in text


@pytest.mark.parametrize("fragment", [*FRAGMENTS, "<answer></answer>", "\\boxed{}", "\\boxed{{}", "\\boxed    "])
def test_time_is_linear(fragment: str) -> None:
    # Quadratic time would be minutes for this length.
    text = fragment * (300_000 // len(fragment))
    started = time.process_time()
    for whole in (text, text + "</answer>", "<answer>" + text, text + "}" * 150_000):
        find_answer(whole, "tags")
        find_answer(whole, "bare")
    assert time.process_time() - started < 4
