"""SampleTable: complete lines on disk, a table that shows the text as it is."""

import html
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html
from tests.training import Recorder, tiny_module, train

from stabledrl.callbacks import SampleTable
from stabledrl.callbacks.sample_table import markdown_table, write_samples
from stabledrl.errors import UserInputError
from stabledrl.types import Sample


def sample(**changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "task": "digits",
        "prompt_id": 3,
        "sample_index": 1,
        "prompt": "3=",
        "completion": "12",
        "reward": 0.5,
        "correct": False,
        "answer": "12",
        "reason": "wrong",
        "length": 2,
    }
    return Sample(**{**fields, **changes})


def lines(path: Path) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_completion_of_a_recorded_rollout_becomes_a_line(tmp_path: Path, accumulate: int) -> None:
    recorder = Recorder()
    train(
        tiny_module(),
        recorder,
        SampleTable(every_n_rollouts=2),
        steps=6,
        updates=2,
        accumulate=accumulate,
        log_to=tmp_path,
    )
    found = lines(tmp_path / "samples.jsonl")
    assert [(line["step"], line["prompt_id"], line["sample_index"]) for line in found] == [
        (int(batch["step"]), own.prompt_id, own.sample_index)
        for batch in recorder.batches
        if "samples" in batch and batch["step"] in (0, 4)
        for own in batch["samples"]
    ]
    assert len(found) == 16
    for line in found:
        assert line["reward"] is not None
        assert line["reason"]
        assert line["length"] == 4 or len(line["completion"]) < 4
    groups = [found[start : start + 4] for start in range(0, 16, 4)]
    assert all(abs(sum(line["advantage"] for line in group)) < 1e-6 for group in groups)


def test_tensorboard_shows_the_first_rows(tmp_path: Path) -> None:
    train(tiny_module(), SampleTable(rows=3), steps=2, updates=2, log_to=tmp_path)
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    (event,) = accumulator.Tensors("samples/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert event.step == 0
    assert len(text.split("\n")) == 2 + 3
    assert all(line.count("|") == 8 for line in text.split("\n"))


def test_without_a_logger_the_lines_go_to_the_root_directory(tmp_path: Path) -> None:
    train(tiny_module(), SampleTable(), steps=1, updates=1, default_root_dir=tmp_path)
    assert len(lines(tmp_path / "samples.jsonl")) == 8


@given(text=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20))
def test_text_is_shown_as_it_is(text: str) -> None:
    page = markdown_to_safe_html(markdown_table([sample(prompt="x", completion=f"a{text}z")]))
    cells = page.split("<td>")
    shown = cells[2].split("</td>")[0]
    assert html.unescape(shown) == f"a{text}z"


@pytest.mark.parametrize("separator", ["\n", "\r\n", "\r", "\x0b", "\x0c", "\u2028", "\x85"])
def test_a_line_break_does_not_break_the_row(separator: str) -> None:
    table = markdown_table([sample(completion=f"first{separator}second")])
    assert len(table.splitlines()) == 3
    assert "first<br>second" in table


def test_lines_are_appended_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "samples.jsonl"
    write_samples(path, [sample(completion='a\n"b"\u2028é'), sample(reward=None, correct=None, answer=None)], step=1)
    write_samples(path, [sample()], step=2)
    first, second, third = lines(path)
    assert first["completion"] == 'a\n"b"\u2028é'
    assert second["reward"] is second["correct"] is second["answer"] is None
    assert (first["step"], third["step"]) == (1, 2)


@pytest.mark.parametrize("options", [{"every_n_rollouts": 0}, {"rows": 0}])
def test_values_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UserInputError, match="0 must be at least 1"):
        SampleTable(**options)
