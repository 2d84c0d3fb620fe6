from pathlib import Path

import pytest

from stabledrl.data import MATH
from stabledrl.data.math import SUBJECTS, parse_gold
from stabledrl.errors import UserInputError

FILES = Path(__file__).parent / "files"
TRAIN, TEST = str(FILES / "hendrycks_math"), str(FILES / "math_500")


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        (r"so $\boxed{5}$.", "5"),
        (r"$\boxed{\frac{1}{1+\frac{1}{2}}}$", r"\frac{1}{1+\frac{1}{2}}"),
        (r"$\boxed{\left\{x : x > 1\right\}}$", r"\left\{x : x > 1\right\}"),
        (r"first $\boxed{1}$, thus $\boxed{2}$", "2"),
        (r"so \fbox{2}", "2"),
        (r"It is $\boxed 6$.", "6"),
        (r"\boxed{ 7 }", "7"),
        (r"\boxed{}", None),
        (r"\boxed{5", None),
        ("five", None),
    ],
)
def test_gold_is_the_content_of_the_last_box(solution: str, gold: str | None) -> None:
    assert parse_gold(solution) == gold


def test_training_reads_the_train_split_of_every_subject_and_evaluation_math_500() -> None:
    task = MATH(TRAIN, TEST)
    train, held_out = task.rows("train"), task.rows("evaluation")
    assert len(train) == 2 * len(SUBJECTS)
    assert not any("never to be trained on" in row["problem"] for row in train)
    assert [row["answer"] for row in held_out] == ["4", r"\frac{1}{2}", "4", "(0,-2)"]
    assert len(MATH(TRAIN, TEST, subjects=["geometry"]).rows("train")) == 2


@pytest.mark.parametrize("style", ["compact", "instruction"])
def test_every_gold_is_graded_right_against_itself(style: str) -> None:
    task = MATH(TRAIN, TEST, prompt_style=style)
    for row in [*task.rows("train"), *task.rows("evaluation")]:
        assert task.rewards[0].grade(row["completion"], **row).correct, row  # type: ignore[union-attr]


def test_evaluation_takes_the_answer_column_and_needs_no_solution(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    assert MATH(TRAIN, str(tmp_path / "own.jsonl")).rows("evaluation")[0]["answer"] == "2"
    with pytest.raises(UserInputError, match="lacks column solution; found: answer, problem; expected: problem, sol"):
        MATH(str(tmp_path / "own.jsonl"), TEST).rows("train")


def test_prompt_keeps_latex_and_braces() -> None:
    row = MATH(TRAIN, TEST, prompt_style="compact", subjects=["prealgebra"]).rows("train")[0]
    assert row["prompt"] == "What is half of 1{,}000?\nAnswer: "
