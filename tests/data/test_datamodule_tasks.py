"""Which prompts of which tasks are trained on and evaluated."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.data.recorder import Recorder, length_reward, make_data, make_trainer
from transformers import PreTrainedTokenizerFast

from stabledrl.data import PromptDataModule, Sudoku, Table
from stabledrl.errors import UserInputError
from stabledrl.protocols import Split, Task
from stabledrl.rewards import SudokuGrid


class Numbers(Task):
    """Given prompts, each graded by its length."""

    def __init__(self, name: str, train: range, evaluation: range) -> None:
        self.name = name
        self.rewards = [length_reward]
        self.reward_weights = [1.0]
        self._numbers = {"train": train, "evaluation": evaluation}

    def rows(self, split: Split) -> list[dict[str, Any]]:
        return [{"prompt": f"{self.name}{number}"} for number in self._numbers[split]]


def trained_prompts(module: Recorder) -> set[str]:
    return {module.tokenizer.decode(ids).replace("<|end|>", "") for seen in module.seen for ids in seen[3]}


def test_evaluation_tasks_are_evaluated_and_not_trained_on(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    module = Recorder(tokenizer)
    data = make_data(
        tasks=[Numbers("a", range(4), range(8, 10))], evaluation_tasks=[Numbers("b", range(4), range(8, 11))]
    )
    make_trainer(tmp_path, max_steps=8, max_epochs=-1, limit_val_batches=0).fit(module, data)
    assert trained_prompts(module) == {"a0", "a1", "a2", "a3"}
    make_trainer(tmp_path).test(module, datamodule=data, verbose=False)
    assert sorted(row for batch in module.evaluated for row in batch) == [0, 1, 2, 3, 4]
    with pytest.raises(UserInputError, match="must be distinct"):
        make_data(tasks=[Sudoku(1, 1)], evaluation_tasks=[Sudoku(2, 2)])


def test_tasks_without_training_rows_are_refused_before_the_model_is_configured(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    module = Recorder(tokenizer)
    data = make_data(tasks=[Numbers("a", range(4), range(8, 10)), Numbers("b", range(0), range(2))])
    with pytest.raises(UserInputError, match="'b' has no training rows; move it to evaluation_tasks"):
        make_trainer(tmp_path, max_steps=1).fit(module, data)
    assert not module.configured
    make_trainer(tmp_path).test(module, datamodule=data, verbose=False)


@pytest.mark.parametrize("mode", ["drop", "report", "off"])
def test_training_rows_found_in_an_evaluation_set_are_dropped_reported_or_not_looked_for(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr("stabledrl.data.contamination.rank_zero_info", lines.append)
    module = Recorder(tokenizer)
    # Of five training prompts the last is held out by the task itself, and the first by another one.
    other = Numbers("b", range(0), range(1))
    other.rows = lambda split: [{"prompt": "a0"}]  # type: ignore[method-assign, assignment]
    data = make_data(tasks=[Numbers("a", range(5), range(4, 6))], evaluation_tasks=[other], contamination=mode)
    make_trainer(tmp_path, max_steps=20, max_epochs=-1, limit_val_batches=0).fit(module, data)
    kept = {"a1", "a2", "a3"}
    assert trained_prompts(module) == (kept if mode == "drop" else kept | {"a0", "a4"})
    assert len(lines) == (0 if mode == "off" else 2)
    # A prompt's number does not depend on what is dropped.
    numbers = {
        tokenizer.decode(ids).replace("<|end|>", ""): number
        for seen in module.seen
        for number, ids in zip(seen[0], seen[3])
    }
    assert all(numbers[prompt] == int(prompt[1]) for prompt in kept)


def test_a_task_that_trains_on_its_evaluation_rows_alone_is_refused_before_the_model_is_configured(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    module = Recorder(tokenizer)
    with pytest.raises(UserInputError, match="after the filter contamination drop"):
        make_trainer(tmp_path, max_steps=1).fit(module, make_data(tasks=[Numbers("a", range(4), range(4))]))
    assert not module.configured


def mixed_data() -> PromptDataModule:
    tasks = [Numbers("a", range(9), range(10, 12)), Numbers("b", range(40), range(50, 52))]
    return make_data(tasks=tasks, task_weights={"a": 3.0, "b": 1.0}, prompts_per_rollout=4)


def test_weights_decide_how_much_of_a_rollout_each_task_is_and_a_resumed_run_shows_the_same(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    whole = Recorder(tokenizer)
    keep_all = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    make_trainer(tmp_path, [keep_all], max_steps=27, max_epochs=-1, limit_val_batches=0).fit(whole, mixed_data())
    for prompts, *_ in whole.seen:
        assert sum(prompt < 9 for prompt in prompts) == 3
    for step in (1, 2, 13, 24, 26):  # 12 rollouts of two slots per epoch.
        resumed = Recorder(tokenizer)
        trainer = make_trainer(tmp_path, max_steps=27, max_epochs=-1, limit_val_batches=0)
        trainer.fit(resumed, mixed_data(), ckpt_path=tmp_path / f"step={step}.ckpt", weights_only=True)
        assert resumed.seen == whole.seen[step:], step


def test_files_without_a_column_are_refused_before_the_model_is_configured(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    (tmp_path / "good.jsonl").write_text('{"prompt": "1=", "puzzle": "0320020430402010"}\n')
    (tmp_path / "bad.jsonl").write_text('{"prompt": "2=", "grid": "0320020430402010"}\n')
    good, bad = str(tmp_path / "good.jsonl"), str(tmp_path / "bad.jsonl")
    expected = "lacks column puzzle; found: grid, prompt; expected: prompt, puzzle"
    with pytest.raises(UserInputError, match=expected):
        make_data(tasks=[Table(good, bad, rewards=[SudokuGrid()])])
    module = Recorder(tokenizer)
    with pytest.raises(UserInputError, match=expected):
        make_trainer(tmp_path, max_steps=1).fit(module, make_data(tasks=[Table(bad, good, rewards=[SudokuGrid()])]))
    assert not module.configured
