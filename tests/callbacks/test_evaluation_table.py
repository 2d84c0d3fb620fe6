"""EvaluationTable: what is in the table is what is on disk, whatever the batches and the processes."""

import csv
import json
import os
import socket
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from tests.training import Digits, Fixed, small_digits, tiny_module, tiny_policy

from stabledrl.backbones import loading
from stabledrl.callbacks import EvaluationTable, SampleWriter
from stabledrl.data import PromptDataModule
from stabledrl.errors import UserInputError
from stabledrl.grade import Grade
from stabledrl.samplers import SemiAutoregressiveSampler
from stabledrl.scores import majority_at_k, pass_at_k, wilson_interval

SPEED = ("tokens_per_second", "steps_per_second")


class SmallFirst:
    """Right where the first digit is small; the answer is that digit."""

    def __call__(self, prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        return [self.grade(completion).score for completion in completions]

    def grade(self, completion: str) -> Grade:
        answer = next((character for character in completion if character.isdigit()), None)
        correct = answer is not None and answer < "4"
        return Grade(correct=correct, score=float(correct), answer=answer, reason=f"first digit {answer}")


class OddDigits(Digits):
    """Seven prompts, which two processes cannot share evenly."""

    def rows(self, split: Any) -> Any:
        return super().rows(split)[:7]


def sampler() -> SemiAutoregressiveSampler:
    return SemiAutoregressiveSampler(completion_length=4, block_size=2, denoising_steps=4)


def run_test(directory: Path, batch_size: int = 3, *, trainer: Any = None, **options: Any) -> dict[str, float]:
    """Tests an untrained model, leaves the files in the directory and returns the metrics."""
    tasks = [OddDigits(SmallFirst(), "graded"), Digits(small_digits, "plain")]
    done = Trainer(
        accelerator="cpu",
        logger=TensorBoardLogger(directory, name="", version=""),
        callbacks=[EvaluationTable(**options), SampleWriter()],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        **(trainer or {}),
    )
    data = PromptDataModule(tasks, evaluation_batch_size=batch_size, seed=0)
    (metrics,) = done.test(tiny_module(sampler=sampler()), datamodule=data, verbose=False)
    return dict(metrics)


def table(directory: Path) -> list[dict[str, str]]:
    with (directory / "test_table.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def without_speed(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{name: value for name, value in row.items() if name not in SPEED} for row in rows]


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "test_samples.jsonl").read_text(encoding="utf-8").splitlines()]


SAMPLED: dict[str, Any] = {
    "lengths": [2, 4, 8],
    "samples_per_prompt": 4,
    "k": [1, 3],
    "temperature": 1.5,
    "seed": 3,
}
TWO = {**SAMPLED, "lengths": [4, 8], "samples_per_prompt": 3}


def test_the_table_is_what_the_completions_on_disk_say(tmp_path: Path) -> None:
    metrics = run_test(tmp_path, **SAMPLED)
    found, written = table(tmp_path), lines(tmp_path)
    assert [(row["task"], row["completion_length"]) for row in found] == [
        (task, length) for task in ("graded", "plain") for length in ("2", "4", "8")
    ]
    varied = 0
    for row in found:
        own = [line for line in written if all(str(line[key]) == row[key] for key in ("task", "completion_length"))]
        greedy = [line for line in own if line["temperature"] == 0]
        sampled = [line for line in own if line["temperature"] == 1.5]
        count = 7 if row["task"] == "graded" else 8
        assert (len(greedy), len(sampled)) == (count, 4 * count)
        right = sum(line["correct"] is True for line in greedy)
        assert (int(row["prompts"]), int(row["correct"])) == (count, right)
        assert float(row["accuracy"]) == right / count
        assert (float(row["accuracy_low"]), float(row["accuracy_high"])) == wilson_interval(right, count)
        assert float(row["mean_length"]) == pytest.approx(sum(line["length"] for line in greedy) / count)
        assert row["denoising_steps"] == row["completion_length"]
        groups = [list(group) for _, group in groupby(sampled, key=lambda line: line["prompt_id"])]
        for k in (1, 3):
            passed = [pass_at_k([line["correct"] for line in group], k) for group in groups]
            assert float(row[f"pass@{k}"]) == pytest.approx(sum(passed) / count)
            if row["task"] == "plain":
                assert row[f"majority@{k}"] == ""  # A plain function parses no answers.
                continue
            voted = [
                majority_at_k([line["answer"] for line in group], [line["correct"] for line in group], k)
                for group in groups
            ]
            assert float(row[f"majority@{k}"]) == pytest.approx(sum(voted) / count)
            varied += 0 < sum(voted) < sum(passed)
        assert all(float(row[name]) > 0 for name in SPEED)
        if row["completion_length"] == "4":
            assert metrics[f"test/{row['task']}/accuracy"] == pytest.approx(right / count)
    assert varied


@pytest.mark.parametrize("batch_size", [1, 4])
def test_results_do_not_depend_on_the_batch_size(tmp_path: Path, batch_size: int) -> None:
    whole = run_test(tmp_path / "whole", 8, **SAMPLED)
    parts = run_test(tmp_path / "parts", batch_size, **SAMPLED)
    assert whole == parts
    assert without_speed(table(tmp_path / "whole")) == without_speed(table(tmp_path / "parts"))
    assert sorted(map(json.dumps, lines(tmp_path / "whole"))) == sorted(map(json.dumps, lines(tmp_path / "parts")))


def in_a_process(rank: int, directory: Path, port: int) -> None:
    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
    names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    names |= {"TORCHELASTIC_USE_AGENT_STORE": "False"}
    os.environ.update({name: str(value) for name, value in names.items()})
    metrics = run_test(directory, trainer={"devices": 2, "strategy": "ddp"}, **TWO)
    (directory / f"metrics{rank}.json").write_text(json.dumps(metrics))


def test_two_processes_find_exactly_what_one_finds(tmp_path: Path) -> None:
    """Seven and eight prompts in batches of three: shares differ, and one process has nothing in the last batch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "two").mkdir()
    torch.multiprocessing.spawn(in_a_process, args=(tmp_path / "two", port), nprocs=2)
    alone = run_test(tmp_path / "one", **TWO)
    for rank in (0, 1):
        assert json.loads((tmp_path / "two" / f"metrics{rank}.json").read_text()) == alone
    assert without_speed(table(tmp_path / "two")) == without_speed(table(tmp_path / "one"))
    assert lines(tmp_path / "two") == lines(tmp_path / "one")


def test_by_default_there_is_a_row_per_task_of_the_configured_sampler(tmp_path: Path) -> None:
    run_test(tmp_path)
    assert [(row["task"], row["completion_length"]) for row in table(tmp_path)] == [("graded", "4"), ("plain", "4")]
    assert len(lines(tmp_path)) == 15
    assert not any("@" in name for name in table(tmp_path)[0])


def test_other_steps_are_decoded_anew_and_told_apart(tmp_path: Path) -> None:
    run_test(tmp_path, steps_per_token=0.5)
    assert {row["denoising_steps"] for row in table(tmp_path)} == {"2"}
    assert [line["denoising_steps"] for line in lines(tmp_path)].count(2) == 15
    assert [line["denoising_steps"] for line in lines(tmp_path)].count(4) == 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": []}, r"lengths \[\] must be one or more different"),
        ({"lengths": [4, 4]}, r"lengths \[4, 4\] must be one or more different"),
        ({"steps_per_token": 0.0}, "steps_per_token 0.0 must be above 0"),
        ({"steps_per_token": 1.5}, "steps_per_token 1.5 must be above 0 and at most 1"),
        ({"samples_per_prompt": -1}, "samples_per_prompt -1 must be at least 0"),
        ({"k": [1]}, "k 1 must lie between 1 and samples_per_prompt 0"),
        ({"k": [0], "samples_per_prompt": 4}, "k 0 must lie between 1 and samples_per_prompt 4"),
        ({"k": [1, 5], "samples_per_prompt": 4}, "k 5 must lie between 1 and samples_per_prompt 4"),
        ({"temperature": 0.0}, "temperature 0.0 must be finite and above 0"),
        ({"temperature": float("nan")}, "temperature nan must be finite and above 0"),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        EvaluationTable(**options)


@pytest.mark.parametrize(("samples", "expected"), [(0, []), (1, [1]), (6, [1, 2, 4]), (8, [1, 2, 4, 8])])
def test_powers_of_two_are_the_default_for_k(samples: int, expected: list[int]) -> None:
    assert EvaluationTable(samples_per_prompt=samples).k == expected


@pytest.mark.parametrize(
    ("own", "options", "message"),
    [
        (sampler(), {"lengths": [4, 7]}, "completion_length 7 is not a multiple of block_size 2"),
        (sampler(), {"lengths": [6], "steps_per_token": 0.25}, "6 x steps_per_token 0.25 makes 1.5"),
        (Fixed(3, 3), {"lengths": [4]}, "Fixed has no setting completion_length"),
    ],
    ids=["block", "steps", "sampler"],
)
def test_lengths_that_do_not_fit_are_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, own: Any, options: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda *_: pytest.fail("the model was loaded"))
    module = tiny_module(policy="nowhere", sampler=own)
    done = Trainer(accelerator="cpu", logger=False, callbacks=[EvaluationTable(**options)], enable_progress_bar=False)
    with pytest.raises(UserInputError, match=message):
        done.test(module, datamodule=PromptDataModule([Digits()], seed=0))


def test_a_sampler_without_lengths_has_its_row_too(tmp_path: Path) -> None:
    three = tiny_policy().tokenizer.convert_tokens_to_ids("3")
    logger = TensorBoardLogger(tmp_path, name="", version="")
    done = Trainer(accelerator="cpu", logger=logger, callbacks=[EvaluationTable()], enable_progress_bar=False)
    module = tiny_module(sampler=Fixed(three, three))
    done.test(module, datamodule=PromptDataModule([Digits(SmallFirst())], seed=0), verbose=False)
    (row,) = table(tmp_path)
    assert (row["accuracy"], row["mean_length"], row["denoising_steps"]) == ("1.0", "2.0", "")
