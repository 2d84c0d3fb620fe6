import random
import time
from typing import Any

import pytest

from stabledrl.data import Countdown, Sudoku
from stabledrl.data.contamination import find_overlap, normalize, report_overlap, row_text
from stabledrl.errors import UserInputError

STORY = "Natalia sold clips to {n} of her friends in April, and then she sold half as many clips in May. How many?"
OTHERS = [
    {"prompt": f"Problem {number}: {' '.join(random.Random(number).sample('abcdefghijklmnopqrstuvwxyz' * 2, 30))}"}
    for number in range(50)
]


def rows(*texts: str) -> list[dict[str, Any]]:
    return [{"prompt": text} for text in texts]


@pytest.mark.parametrize(
    "copy",
    [
        "What is 2+3?",
        "what is 2+3",
        "  What  is\n2 + 3?",
        "What is $2+3$?",
        "What is ２+3?",
    ],
)
def test_the_same_words_are_found_whatever_case_space_and_punctuation(copy: str) -> None:
    overlap = find_overlap(rows("What is 9+9?", copy), rows("Who?", "What is 2+3?"))
    assert (overlap.exact, overlap.similar) == ({1}, frozenset())


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("3-5=", "3+5="),
        ("What is 1.5?", "What is 15?"),
        ("3,5,9:11=", "3,5,9:12="),
        ("0320020430402010=", "0320020430402013="),
        ("#..#", "#.#."),
        ("#  #", "# #"),
        ("What is 2+3?", "What is 3+2?"),
    ],
)
def test_other_numbers_and_signs_are_another_problem(text: str, other: str) -> None:
    assert normalize(text) != normalize(other)
    assert not find_overlap(rows(text), rows(other)).rows


def test_a_text_with_words_around_it_is_much_alike() -> None:
    copy = "Here is a task. " + STORY.format(n=48).replace(",", " -") + " Answer."
    overlap = find_overlap([*OTHERS, *rows(copy)], rows(STORY.format(n=48)))
    assert (overlap.exact, overlap.similar) == (frozenset(), {50})


def test_the_same_story_with_other_numbers_is_another_problem() -> None:
    assert not find_overlap([*OTHERS, *rows(STORY.format(n=50))], rows(STORY.format(n=48))).rows


def test_a_part_of_a_story_is_not_the_story() -> None:
    assert not find_overlap([*OTHERS, *rows(STORY.format(n=48)[:60])], rows(STORY.format(n=48))).rows


def test_an_instruction_that_all_share_says_nothing() -> None:
    def shared(text: str) -> str:
        return f"You are a careful student who thinks step by step and then writes the final answer in tags. {text}"

    train = rows(*(shared(row["prompt"]) for row in OTHERS[:40]))
    held_out = rows(*(shared(row["prompt"]) for row in OTHERS[40:]))
    assert not find_overlap(train, held_out).rows
    assert find_overlap([*train, held_out[3]], held_out).rows == {40}


def test_every_copy_is_found_however_often_it_is_repeated() -> None:
    train = [*OTHERS, *rows(*[STORY.format(n=48)] * 30, *[STORY.format(n=48) + " Please."] * 30)]
    assert find_overlap(train, rows(STORY.format(n=48))).rows == set(range(50, 110))


def test_the_problem_is_compared_without_what_the_prompt_says_around_it() -> None:
    chat = [{"role": "user", "content": "Solve: 1+1"}]
    assert row_text({"prompt": chat, "problem": "1+1"}) == "1+1"
    assert row_text({"prompt": chat}) == "Solve: 1+1"
    assert row_text({"prompt": "1+1"}) == "1+1"
    assert find_overlap([{"prompt": "Q: 1+1", "problem": "1+1"}], [{"prompt": chat, "problem": "1+1"}]).exact == {0}


GENERATED = [Countdown(prompt_style="instruction"), Countdown(), Sudoku(prompt_style="instruction")]


@pytest.mark.parametrize("task", GENERATED)
def test_generated_tasks_are_clean(task: Any) -> None:
    assert not find_overlap(task.rows("train"), task.rows("evaluation")).rows


def test_thousands_of_rows_take_seconds() -> None:
    words = [f"w{number}x" for number in range(2000)]
    generator = random.Random(0)
    train = rows(*(" ".join(generator.choices(words, k=60)) for _ in range(2500)))
    held_out = [*rows(*(" ".join(generator.choices(words, k=60)) for _ in range(499))), train[7]]
    start = time.process_time()
    assert find_overlap(train, held_out).rows == {7}
    assert time.process_time() - start < 10


@pytest.mark.parametrize("drop", [True, False])
def test_one_line_a_pair_counts_what_was_found(monkeypatch: pytest.MonkeyPatch, drop: bool) -> None:
    lines: list[str] = []
    monkeypatch.setattr("stabledrl.data.contamination.rank_zero_info", lines.append)
    train = [*OTHERS, *rows("1+1", "2+2")]
    left_out = report_overlap("mine", train, {"mine": rows("1+1", "9"), "other": rows("7")}, drop=drop)
    assert left_out == ({50} if drop else set())
    assert len(lines) == 2
    assert "of 52 training rows of mine, 1 are among the 2 evaluation rows of mine and 0 are much alike" in lines[0]
    assert ("dropped" in lines[0]) == drop
    assert ("kept" in lines[0]) == (not drop)
    assert "0 are among the 1 evaluation rows of other" in lines[1]


def test_rows_that_are_all_found_are_refused_by_the_filter_s_name() -> None:
    with pytest.raises(UserInputError, match="no training row left of 2 after the filter contamination drop"):
        report_overlap("mine", rows("1", "2"), {"a": rows("1"), "b": rows("2")}, drop=True)
    assert report_overlap("mine", rows("1", "2"), {"a": rows("1", "2")}, drop=False) == frozenset()
