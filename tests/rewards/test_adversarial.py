"""Completions that are made to break a grader."""

import functools
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from stabledrl.grade import Grade
from stabledrl.rewards import CountdownEquation, FormatTags, MathAnswer, SudokuGrid

FRAGMENTS = [
    *("<answer>", "</answer>", "<think>", "</think>", "\\boxed{", "\\boxed", "{", "}", "\\{", "\\}", "\\", "(", ")"),
    *("[", "]", "$", "7", "0", "5", "9" * 40, "9" * 400, "9" * 5000, "-", "+", "*", "/", "^", "_", "=", ",", ";", " "),
    *(
        "\n",
        "\t",
        "\x00",
        "\x1b[0m",
        "\u202e",
        "\ud800",
        "é",
        "５",
        "٣",
        "½",
        "²",
        "∞",
        "\U0001f600",
        "\\frac",
        "\\sqrt",
    ),
    *("\\pm", "\\text{", "\\left(", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", "x", "y", "x^2", "sin", "log"),
    *(
        "!",
        "%",
        "\\%",
        "and",
        "or",
        "the answer is ",
        "__import__('os')",
        "9**9**9",
        "1e999",
        "nan",
        "inf",
        "<answer>5",
    ),
    *(
        "^{9^{9",
        "\\int",
        "\\sum_{i=1}^{",
        "\\lim",
        "i",
        "e",
        "\\binom{9}{",
        "<",
        ">",
        "\\le",
        "|",
        "'",
        "4321123431422413",
    ),
]
WRAPPERS = ["%s", "<answer>%s</answer>", "\\boxed{%s}", "<answer>\\boxed{%s}</answer>", "<think>x</think><answer>%s"]
PUZZLE = "0320020430402010"
GRADERS: dict[str, Callable[[str], Grade]] = {
    "countdown": functools.partial(CountdownEquation().grade, numbers=[2, 3, 4], target=5),
    "countdown_bare": functools.partial(CountdownEquation("bare").grade, numbers=[2, 3, 4], target=5),
    "sudoku": functools.partial(SudokuGrid().grade, puzzle=PUZZLE),
    "sudoku_bare": functools.partial(SudokuGrid("bare").grade, puzzle=PUZZLE),
    "format": FormatTags().grade,
}
GOLDS = ["5", r"\frac{1}{2}", "(1,2)", "1,2", "x^2+1", r"\text{Evelyn}", r"\pm 3", "x=5", "x<5"]


def completions(count: int, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    bodies = ("".join(generator.choices(FRAGMENTS, k=generator.randint(0, 30))) for _ in range(count))
    return [generator.choice(WRAPPERS) % body for body in bodies]


def check(grade: Grade) -> None:
    assert grade.reason
    assert grade.score is None or 0 <= grade.score <= 1
    assert grade.correct is (grade.score == 1)
    assert grade.answer is None or len(grade.answer) <= 64


@pytest.mark.parametrize("name", GRADERS)
def test_ten_thousand_completions_raise_nothing(name: str) -> None:
    for completion in completions(10_000):
        check(GRADERS[name](completion))


def judge_as_mathematics(count: int) -> None:
    texts = completions(count)
    grader = MathAnswer(deadline=5, batch_deadline=1800, workers=2)
    grades = grader.grade_batch(texts, [{"answer": GOLDS[index % len(GOLDS)]} for index in range(count)])
    assert len(grades) == count
    for grade in grades:
        check(grade)
    # An undecided one has taken the deadline; that must stay the exception.
    assert sum(grade.score is None for grade in grades) <= count // 100


def test_five_hundred_completions_as_mathematics_raise_nothing() -> None:
    judge_as_mathematics(500)


@pytest.mark.slow
def test_ten_thousand_completions_as_mathematics_raise_nothing() -> None:
    judge_as_mathematics(10_000)


MATHEMATICS = {
    f"math_{form}": functools.partial(MathAnswer(form, workers=2).grade, answer="5")  # type: ignore[arg-type]
    for form in ("tags", "bare")
}


@pytest.mark.parametrize("name", [*GRADERS, *MATHEMATICS])
@pytest.mark.parametrize(
    "fragment",
    [
        "9",
        "(",
        "{",
        "\\boxed{",
        "<answer>",
        "</answer>",
        "<think>",
        "\\boxed{5}",
        "<answer>5",
        " ",
        "\\",
        "\n",
        "a, ",
        "$",
    ],
)
def test_time_is_linear_in_the_length(name: str, fragment: str) -> None:
    grade = {**GRADERS, **MATHEMATICS}[name]

    def seconds(length: int) -> float:
        text = fragment * (length // len(fragment))
        started = time.process_time()
        for wrapper in ("%s", "<answer>%s</answer>", "%s}</answer>"):
            check(grade(wrapper.replace("%s", text)))
        return time.process_time() - started

    # Of quadratic growth, three doublings would make 64 times the time; of linear growth they make 8 times.
    short = min(seconds(20_000) for _ in range(3))
    assert min(seconds(160_000) for _ in range(2)) < 24 * max(short, 1e-3)


@pytest.mark.parametrize("digits", [sys.get_int_max_str_digits(), 10 * sys.get_int_max_str_digits()])
def test_numbers_beyond_pythons_limit_are_wrong_answers(digits: int) -> None:
    for grade in {**GRADERS, **MATHEMATICS}.values():
        for text in ("9" * digits, "-" + "1" * digits, "1/" + "3" * digits, "0." + "3" * digits):
            assert grade(f"<answer>{text}</answer>").correct is False


@pytest.mark.parametrize("tower", ["9^{9^{9^{9}}}", "9**9**9**9", "10^{10^{10}}", "((9!)!)!", "2^{2^{2^{2^{2^{2}}}}}"])
def test_towers_of_powers_end_at_the_deadline_and_are_wrong(tower: str) -> None:
    grader: Any = MathAnswer(deadline=1, workers=2)
    grade = grader.grade(f"<answer>{tower}</answer>", answer="5")
    assert grade.correct is False
    assert grade.score in (0.0, None)
    assert grader.grade("<answer>\\sqrt{25}</answer>", answer="5").correct
