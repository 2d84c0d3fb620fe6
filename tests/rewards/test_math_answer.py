import copy
import pickle
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from stabledrl.errors import UserInputError
from stabledrl.rewards import MathAnswer

RIGHT = [
    *[(r"\frac12", text) for text in (r"\frac{2}{4}", "1/2", ".5", "½", "2/4", "0.50", r"\tfrac12", "$\\frac{1}{2}$")],
    *[("5", text) for text in ("05", "5.", "+5", "5.0", "x=5", "5=x", "x=y=5", "2+3=5", r"\{5\}", r"\text{5}", "|5|")],
    *[("5", text) for text in (r"5\,\mathrm{m}", "5 cm", "5cm", "5 apples", r"5\text{ m}/\text{s}^2", r"\$5", "€5")],
    *[("5", text) for text in ("The answer is 5.", "so it costs $5 a day", r"There are $5$ of them", "x = $5$")],
    *[("1234567", text) for text in ("1,234,567", "1{,}234{,}567", r"1\,234\,567", "1 234 567", "1234567.00")],
    *[("50", text) for text in ("50%", r"50\%", "50 percent", r"50\text{ percent}")],
    *[("90", text) for text in (r"90^\circ", r"90^{\circ}", "90°", "90 degrees")],
    ("50\\%", "50"),
    ("90^\\circ", "90"),
    ("5\\text{ cm}", "5"),
    ("x=5", "5"),
    ("2\\frac{1}{2}", "2.5"),
    ("\\frac{5}{2}", "2 1/2"),
    ("-\\frac{3}{4}", "\\frac{-3}{4}"),
    ("\\pm 3", "3,-3"),
    ("\\pm 3", "x = \\pm 3"),
    ("3,-3", "\\pm 3"),
    ("1\\pm\\sqrt{2}", "1-\\sqrt2, 1+\\sqrt2"),
    ("1,2", "2 and 1"),
    ("x=1,y=2", "y=2,x=1"),
    ("(1,2)", "\\left( 1, \\frac{4}{2} \\right)"),
    ("(1,2)", "x=1, y=2"),
    ("\\{1,2\\}", "2,1"),
    ("\\{1,2\\}", "\\{2,1\\}"),
    ("(-\\infty,2)\\cup(3,\\infty)", "(3,\\infty)\\cup(-\\infty,2)"),
    ("(5,\\infty)", "x>5"),
    ("x>5", "(5,∞)"),
    ("[1,2]", "x \\in [1,2]"),
    ("x<5", "5>x"),
    ("y=2x+3", "3+2x"),
    ("x^2+y^2=1", "y^2+x^2=1"),
    ("x^2-1", "(x-1)(x+1)"),
    ("\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}"),
    ("\\begin{pmatrix}1/2\\\\2\\end{pmatrix}", "\\begin{pmatrix}0.5\\\\ 2\\end{pmatrix}"),
    ("3+4i", "4i+3"),
    ("2n\\pi", "2πn"),
    ("3628800", "10!"),
    ("10^{20}", "100000000000000000000"),
    ("1500", "1.5\\times 10^{3}"),
    ("3", "\\log_2 8"),
    ("\\text{Evelyn}", "evelyn"),
    ("B", "(B)"),
    ("\\text{(B)}", "B"),
    ("\\text{no solution}", "no solution"),
    ("\\boxed{7}", "7"),
    (7, "7"),
    (0.5, "1/2"),
]
WRONG = [
    *[("5", text) for text in ("-5", "5.0000001", "1,2,3,4,5", "4 or 5", "5,5", "x=6", "x+1=5", "4=5", "5!", "x<5")],
    *[
        ("5", text)
        for text in ("five", "x", "", " ", "4, maybe 5", "3 apples and 5 pears", "costs $5 or $6", "{", "\\")
    ],
    ("50\\%", "0.5"),
    ("0.5", "50\\%"),
    ("\\frac13", "0.333"),
    ("\\frac13", "0.3333333333333333"),
    ("\\sqrt{2}", "1.41421356237"),
    ("\\pi", "3.141592653589793"),
    ("57500", "57499.9999999"),
    ("10^{-20}", "10^{-21}"),
    ("10^{20}", "10^{20}+1"),
    ("100000000000000000001", "100000000000000000002"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "2,1"),
    ("(1,2)", "(1,2,3)"),
    ("\\{1,2\\}", "(1,2)"),
    ("\\{1,2\\}", "\\{1,2,3\\}"),
    ("1\\pm\\sqrt{2}", "1+\\sqrt2"),
    ("x=5", "y=5"),
    ("x=2,y=1", "x=1,y=2"),
    ("x^2+y^2=1", "x^2+y^2=2"),
    ("x^2+y^2=1", "1"),
    ("(-\\infty,2)\\cup(3,\\infty)", "(-\\infty,2]\\cup(3,\\infty)"),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}2\\\\1\\end{pmatrix}"),
    ("x^2-1", "x^2+1"),
    ("\\text{Evelyn}", "Nelyve"),
    ("B", "C"),
    ("12", "1,2"),
    ("11", "1 1"),
    ("2", "2ab"),
    ("2", "2c"),
    ("2", "2x"),
]
TOWER = "9^{9^{9^{9}}}"


@pytest.fixture(scope="module")
def grader() -> MathAnswer:
    own = MathAnswer(deadline=60, workers=2)
    own.grade("<answer>x+1</answer>", answer="1+x")
    return own


@pytest.mark.parametrize("correct", [True, False])
def test_answers_are_judged_by_their_value_and_their_kind(grader: MathAnswer, correct: bool) -> None:
    cases = RIGHT if correct else WRONG
    for form in ("<answer>%s</answer>", "<answer>so \\boxed{%s}</answer>"):
        own = [(gold, text) for gold, text in cases if "boxed" not in form or text.count("{") == text.count("}")]
        grades = grader.grade_batch([form % text for _, text in own], [{"answer": gold} for gold, _ in own])
        wrong = [(case, grade) for case, grade in zip(own, grades) if grade.correct is not correct]
        assert not wrong
        assert {grade.score for grade in grades} == {float(correct)}


@pytest.mark.parametrize(
    ("completion", "correct"),
    [
        ("<answer>5</answer> \\boxed{6}", True),
        ("\\boxed{5} <answer>6</answer>", False),
        ("<answer>4</answer><answer>5</answer>", True),
        ("<answer>5</answer><answer>6", True),
        ("<answer>\\boxed{4} no, \\boxed{5}</answer>", True),
        ("<answer>\\boxed{5</answer>", False),
        ("5", False),
        ("the answer is 5", False),
        ("<answer>5", False),
    ],
)
def test_only_the_last_commitment_counts(grader: MathAnswer, completion: str, correct: bool) -> None:
    assert grader.grade(completion, answer="5").correct is correct


def test_a_bare_completion_is_the_answer() -> None:
    assert MathAnswer("bare").grade("x=5", answer="5").correct
    assert not MathAnswer("bare").grade("x=5 or 6", answer="5").correct


def test_an_answer_past_the_deadline_is_wrong_without_score_and_costs_no_other(grader: MathAnswer) -> None:
    texts = [TOWER, "\\sqrt{25}", TOWER, "\\sqrt{36}"]
    own = MathAnswer(deadline=1, workers=2)
    started = time.perf_counter()
    grades = own.grade_batch([f"<answer>{text}</answer>" for text in texts], [{"answer": "5"}] * 4)
    assert time.perf_counter() - started < 20
    assert [(grade.correct, grade.score) for grade in grades] == [(False, None), (True, 1), (False, None), (False, 0)]
    assert "1 s" in grades[0].reason
    assert own.grade("<answer>\\sqrt{25}</answer>", answer="5").correct


def test_a_batch_past_its_deadline_ends(grader: MathAnswer) -> None:
    own = MathAnswer(deadline=60, batch_deadline=1, workers=2)
    started = time.perf_counter()
    grades = own.grade_batch([f"<answer>{TOWER}</answer>"] * 6, [{"answer": "5"}] * 6)
    assert time.perf_counter() - started < 10
    assert {grade.score for grade in grades} == {None}


def test_in_trl_convention_it_says_the_same_from_any_thread(grader: MathAnswer) -> None:
    completions = [[{"role": "assistant", "content": f"<answer>{text}</answer>"}] for text in ("\\sqrt{25}", "6", "x")]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(grader([], completions, answer=["5"] * 3, other=[1, 2, 3])))
    thread.start()
    thread.join()
    assert found == [1.0, 0.0, 0.0]


def test_copies_are_graders_of_the_same_settings(grader: MathAnswer) -> None:
    for other in (copy.deepcopy(grader), pickle.loads(pickle.dumps(grader))):
        assert vars(other) == vars(grader)
        assert other.grade("<answer>\\sqrt{25}</answer>", answer="5").correct


@pytest.mark.parametrize("answer", ["", " ", "$", None, True, ["5"]])
def test_a_row_without_an_answer_is_refused(grader: MathAnswer, answer: Any) -> None:
    with pytest.raises(UserInputError, match="answer"):
        grader.grade("<answer>5</answer>", answer=answer)


@pytest.mark.parametrize(
    "options",
    [{"deadline": 0}, {"deadline": float("inf")}, {"batch_deadline": -1}, {"workers": 0}, {"deadline": float("nan")}],
)
def test_limits_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserInputError, match=next(iter(options))):
        MathAnswer(**options)


def test_nothing_starts_and_nothing_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, pathlib; from stabledrl.rewards import MathAnswer; own = MathAnswer()\n"
        "assert own.grade('<answer>5</answer>', answer='5').correct\n"
        "print([m for m in ('sympy', 'math_verify') if m in sys.modules])\n"
        "print(pathlib.Path('/proc/thread-self/children').read_text())\n"
        "own.warm_up(); print(len(pathlib.Path('/proc/thread-self/children').read_text().split()) == own.workers)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[:3] == ["[]", "", "True"]
