import json
from pathlib import Path
from typing import Any

import pytest

from stabledrl.data import Table
from stabledrl.errors import UserInputError
from stabledrl.rewards import MathAnswer, SudokuGrid


def says_gold(completions: list[str], gold: list[str]) -> list[float]:
    return [float(text == right) for text, right in zip(completions, gold)]


def length(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


ROWS = [{"prompt": f"{number} + 1 =", "gold": str(number + 1)} for number in range(200)]


def test_columns_reach_the_rows_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS)
    task = Table(path, path, rewards=[says_gold])
    assert task.rows("train") == task.rows("evaluation") == ROWS


def test_a_share_is_held_out_by_prompt_and_stays_when_rows_are_added(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [*ROWS, *ROWS[:50]])
    task = Table(path, held_out_share=0.25, rewards=[says_gold])
    train = {row["prompt"] for row in task.rows("train")}
    held_out = {row["prompt"] for row in task.rows("evaluation")}
    assert not train & held_out
    assert train | held_out == {row["prompt"] for row in ROWS}
    assert 30 <= len(held_out) <= 70
    fewer = Table(write(tmp_path / "fewer.jsonl", ROWS[100:]), held_out_share=0.25, rewards=[says_gold])
    assert {row["prompt"] for row in fewer.rows("evaluation")} <= held_out


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_a_share_that_leaves_a_side_empty_is_refused_by_its_name(tmp_path: Path, share: float) -> None:
    task = Table(write(tmp_path / "rows.jsonl", ROWS[:3]), held_out_share=share, rewards=[says_gold])
    with pytest.raises(UserInputError, match=r"no row left of 3 for .* after the filter held_out_share"):
        task.rows("evaluation" if share < 0.5 else "train")


def test_csv_of_puzzles_keeps_leading_zeros_up_to_the_grader(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("prompt,puzzle\n0320020430402010=,0320020430402010\n")
    path = str(tmp_path / "rows.csv")
    task = Table(path, path, rewards=[SudokuGrid(answer_format="bare")])
    (row,) = task.rows("train")
    assert row == {"prompt": "0320020430402010=", "puzzle": "0320020430402010"}
    assert task.rewards[0].grade("1324421334212143", **row).correct is not None  # type: ignore[union-attr]


def test_columns_get_new_names(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"question": "1+1", "label": "2", "id": 5, "prompt": "not this"}])
    task = Table(path, path, rewards=[says_gold], columns={"prompt": "question", "gold": "label"})
    assert task.rows("train") == [{"prompt": "1+1", "gold": "2", "id": 5}]


def test_text_is_put_into_the_template_and_into_a_chat(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"prompt": "a {b}"}])
    task = Table(path, path, rewards=[length], template="Solve {prompt}.", chat=True)
    assert task.rows("train")[0]["prompt"] == [{"role": "user", "content": "Solve a {b}."}]
    task = Table(path, path, rewards=[length], template="Solve {prompt}.")
    assert task.rows("train")[0]["prompt"] == "Solve a {b}."


def test_chats_stay_chats(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    path = write(tmp_path / "rows.jsonl", [{"prompt": chat}])
    assert Table(path, path, rewards=[length], chat=True).rows("train")[0]["prompt"] == chat


def test_a_directory_with_splits_needs_no_more(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", ROWS[:3])
    write(tmp_path / "test.jsonl", ROWS[3:5])
    task = Table(str(tmp_path), rewards=[says_gold])
    assert (len(task.rows("train")), len(task.rows("evaluation"))) == (3, 2)


def test_evaluation_alone(tmp_path: Path) -> None:
    task = Table(evaluation_source=write(tmp_path / "rows.jsonl", ROWS), rewards=[says_gold])
    assert (len(task.rows("train")), len(task.rows("evaluation"))) == (0, 200)


@pytest.mark.parametrize("missing", ["prompt", "gold", "answer"])
def test_missing_columns_are_listed_with_those_found_and_expected(tmp_path: Path, missing: str) -> None:
    row = {"prompt": "1", "gold": "1", "answer": "1", "extra": "1"}
    del row[missing]
    path = write(tmp_path / "rows.jsonl", [row])
    with pytest.raises(UserInputError) as caught:
        Table(path, path, rewards=[MathAnswer(), says_gold]).rows("train")
    found = ", ".join(sorted(row))
    assert f"lacks column {missing}; found: {found}; expected: answer, gold, prompt" in str(caught.value)
    assert "rows.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("position", [0, 2])
def test_a_missing_cell_is_named_with_its_row(tmp_path: Path, position: int) -> None:
    rows = [dict(row) for row in ROWS[:3]]
    del rows[position]["gold"]
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(UserInputError, match=f"no value in column gold of row {position}"):
        Table(path, path, rewards=[says_gold]).rows("train")


def test_golds_that_were_converted_to_dates_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"prompt": "when?", "gold": "2024-01-01"}])
    with pytest.raises(UserInputError, match="column gold looked like dates"):
        Table(path, path, rewards=[says_gold]).rows("train")
    (tmp_path / "rows.csv").write_text("prompt,gold\nwhen?,2024-01-01\n")
    csv = str(tmp_path / "rows.csv")
    assert Table(csv, csv, rewards=[says_gold]).rows("train")[0]["gold"] == "2024-01-01"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "do not tell what is held out"),
        ({"source": "a.jsonl"}, "do not tell what is held out"),
        ({"held_out_share": 0.1}, "do not tell what is held out"),
        ({"source": "a.jsonl", "evaluation_source": "b.jsonl", "held_out_share": 0.1}, "do not tell what is held out"),
        ({"source": "a.jsonl", "held_out_share": 1.0}, "held_out_share 1.0"),
        ({"source": "a.jsonl", "evaluation_source": "b.jsonl", "template": "x"}, "template 'x'"),
        ({"source": "a.jsonl", "evaluation_source": "b.jsonl", "rewards": []}, "rewards is empty"),
        ({"source": "a.jsonl", "evaluation_source": "b.jsonl", "reward_weights": [1.0, 2.0]}, "2 entries for 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        Table(**{"rewards": [length], **settings})
