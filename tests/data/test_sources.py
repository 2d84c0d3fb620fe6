import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from stabledrl.data.sources import Source, is_file
from stabledrl.errors import UserInputError

FILES = Path(__file__).parent / "files"
ROWS = [{"prompt": "0320", "answer": "007"}, {"prompt": "1,000", "answer": "x"}]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """Writes rows in the format that the name ends in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ".json":
            path.write_text(json.dumps(rows))
        case ".csv" | ".tsv":
            datasets.Dataset.from_list(rows).to_csv(path, sep="," if path.suffix == ".csv" else "\t", index=False)
        case ".parquet":
            datasets.Dataset.from_list(rows).to_parquet(path)
    return str(path)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_every_format_gives_the_rows_as_written(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"rows.{suffix}", ROWS)
    assert Source(path=path).read() == ROWS
    other = write(tmp_path / f"more.{suffix}", ROWS[:1])
    assert Source(path=[path, other], split="whatever").read() == ROWS + ROWS[:1]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "parquet"])
def test_a_directory_has_splits_as_a_hub_data_set_has(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"set/train.{suffix}", ROWS)
    write(tmp_path / f"set/test.{suffix}", ROWS[:1])
    assert Source(path=str(tmp_path / "set"), split="train").read() == ROWS
    assert Source(path=str(tmp_path / "set"), split="test").read() == ROWS[:1]
    with pytest.raises(UserInputError, match="no split 'dev'; it has train, test"):
        Source(path=str(tmp_path / "set"), split="dev").read()
    with pytest.raises(UserInputError, match="no split None"):
        Source(path=str(tmp_path / "set")).read()


def test_the_only_split_needs_no_name(tmp_path: Path) -> None:
    write(tmp_path / "set/test.jsonl", ROWS)
    assert Source(path=str(tmp_path / "set")).read() == ROWS


def test_configurations_are_read_one_after_the_other() -> None:
    path = str(FILES / "hendrycks_math")
    rows = Source(path=path, split="train", configs=("geometry", "algebra")).read()
    assert [row["type"] for row in rows] == ["Geometry"] * 2 + ["Algebra"] * 2
    with pytest.raises(UserInputError, match=r"cannot read .*algebra"):
        Source(path=path, split="train").read()
    with pytest.raises(UserInputError, match="'poetry' not found"):
        Source(path=path, split="train", configs=("poetry",)).read()


CELLS = [
    "0320",
    "007",
    "1.50",
    "1e5",
    "NA",
    "null",
    "",
    "True",
    "2024-01-01",
    " 5",
    "a,b",
    'say "x"',
    "two\nlines",
    "é",
]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("in_directory", [False, True])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_csv_cells_are_text_as_it_stands(tmp_path: Path, suffix: str, in_directory: bool, encoding: str) -> None:
    rows = [{"puzzle": cell, "my, col": "01"} for cell in CELLS]
    file = tmp_path / "set" / f"train.{suffix}"
    path = write(file, rows)
    file.write_text(file.read_text(encoding="utf-8"), encoding=encoding)
    assert Source(path=str(file.parent) if in_directory else path, split="train").read() == rows


def test_a_column_of_numbers_alone_keeps_its_zeros(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", [{"puzzle": "0320020430402010", "target": "05"}] * 2)
    second = write(tmp_path / "b.csv", [{"puzzle": "none", "target": "x"}])
    rows = Source(path=[first, second]).read()
    assert [row["puzzle"] for row in rows] == ["0320020430402010"] * 2 + ["none"]
    assert [row["target"] for row in rows] == ["05", "05", "x"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_text_of_digits_stays_text_and_lists_stay_lists(tmp_path: Path, suffix: str) -> None:
    rows = [{"prompt": [{"content": "x", "role": "user"}], "numbers": [3, 4], "target": 7, "gold": "0320"}]
    assert Source(path=write(tmp_path / f"rows.{suffix}", rows)).read() == rows


def test_a_file_that_changed_is_read_anew(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS)
    assert Source(path=path).read() == ROWS
    assert Source(path=write(tmp_path / "rows.jsonl", ROWS[:1] * 3)).read() == ROWS[:1] * 3


def test_a_hub_data_set_out_of_reach_says_how_to_name_a_local_copy() -> None:
    with pytest.raises(UserInputError) as caught:
        Source(path="nobody/nothing", split="train", revision="0123").read()
    assert "cannot read data set 'nobody/nothing' from the hub" in str(caught.value)
    assert "give the path of a local copy instead" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"), [("a.jsonl", ""), ("a.jsonl", "{]\n"), ("a.csv", ""), ("a.csv", "a,b\n"), ("a.parquet", "no")]
)
def test_unreadable_files_are_refused_in_one_line(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserInputError, match=f"cannot read .*{name}") as caught:
        Source(path=str(tmp_path / name)).read()
    assert "\n" not in str(caught.value)


def test_absent_and_mixed_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="no data file at"):
        Source(path=str(tmp_path / "none.jsonl")).read()
    path = write(tmp_path / "rows.jsonl", ROWS)
    with pytest.raises(UserInputError, match="must be of one format"):
        Source(path=[path, write(tmp_path / "rows.csv", ROWS)]).read()
    with pytest.raises(UserInputError, match="must be of one format"):
        Source(path=[str(tmp_path)]).read()


def test_the_state_of_progress_bars_is_restored(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", ROWS)
    before = datasets.are_progress_bars_disabled()
    Source(path=path).read()
    assert datasets.are_progress_bars_disabled() == before


def test_files_are_told_from_directories_and_hub_ids(tmp_path: Path) -> None:
    (tmp_path / "set.json").mkdir()
    assert is_file("a.JSONL")
    assert is_file(["a.csv"])
    assert not is_file("openai/gsm8k")
    assert not is_file(str(tmp_path / "set.json"))
