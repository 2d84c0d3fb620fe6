from pathlib import Path

import pytest

from stabledrl.data import AIME
from stabledrl.data.aime import parse_gold
from stabledrl.errors import UserInputError

FILES = Path(__file__).parent / "files"
LOCAL: dict[int, str | list[str]] = {2024: str(FILES / "aime_2024"), 2025: str(FILES / "aime25")}


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        *[("073", "73"), ("000", "0"), ("7", "7"), (" 204 ", "204"), ("204.0", "204")],
        *[("1000", None), ("-1", None), ("x", None), ("", None), ("7.5", None)],
    ],
)
def test_gold_is_a_whole_number_without_leading_zeros(answer: str, gold: str | None) -> None:
    assert parse_gold(answer) == gold


def test_years_are_read_from_their_own_data_sets_whatever_their_split_is_called() -> None:
    assert [row["answer"] for row in AIME(sources=LOCAL).rows("evaluation")] == ["73", "24", "104", "70", "899", "0"]
    assert [row["answer"] for row in AIME([2025], sources=LOCAL).rows("evaluation")] == ["70", "899", "0"]


def test_leading_zeros_in_an_answer_do_not_count() -> None:
    task = AIME([2024], sources=LOCAL)
    row = task.rows("evaluation")[0]
    for written in ("73", "073", r"\boxed{073}"):
        assert task.rewards[0].grade(f"<answer>{written}</answer>", **row).correct  # type: ignore[union-attr]


def test_whole_numbers_may_be_numbers(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"problem": "p", "answer": 33}\n')
    assert AIME([1999], sources={1999: str(tmp_path / "own.jsonl")}).rows("evaluation")[0]["answer"] == "33"


def test_there_are_training_rows_only_where_they_are_named() -> None:
    assert AIME(sources=LOCAL).rows("train") == []
    assert len(AIME([2025], sources=LOCAL, train_source=LOCAL[2024]).rows("train")) == 3


@pytest.mark.parametrize("years", [[], [1983], [2024, 1983]])
def test_years_without_a_source_are_refused(years: list[int]) -> None:
    with pytest.raises(UserInputError, match=r"must be some of \[2024, 2025\]"):
        AIME(years)
