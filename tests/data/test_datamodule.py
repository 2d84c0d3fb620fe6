from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.data.recorder import END, MASK, Recorder, length_reward, make_data, make_trainer
from tests.training import Digits, tiny_module, tiny_policy, train
from transformers import PreTrainedTokenizerFast

from stabledrl.data import PromptDataModule, Sudoku
from stabledrl.errors import UserInputError
from stabledrl.protocols import Split, Task
from stabledrl.rewards import CountdownEquation, SudokuGrid


class Broken(Task):
    """Rows without what the reward needs, in one split."""

    name = "broken"

    def __init__(self, split: Split, rows: list[dict[str, Any]]) -> None:
        self.rewards = [SudokuGrid()]
        self.reward_weights = [1.0]
        self._split, self._rows = split, rows

    def rows(self, split: Split) -> list[dict[str, Any]]:
        return self._rows if split == self._split else [{"prompt": "1=", "puzzle": "0" * 16}]


def test_resume_at_every_step_shows_the_same_prompts_as_an_uninterrupted_run(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    whole = Recorder(tokenizer)
    keep_all = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    make_trainer(tmp_path, [keep_all], max_steps=11, max_epochs=-1).fit(whole, make_data())
    # Two rollouts of two slots per epoch: the run ends within the third.
    assert [seen[1:3] for seen in whole.seen] == [divmod(step, 2) for step in range(11)]
    for step in range(1, 11):
        resumed = Recorder(tokenizer)
        trainer = make_trainer(tmp_path, max_steps=11, max_epochs=-1)
        trainer.fit(resumed, make_data(), ckpt_path=tmp_path / f"step={step}.ckpt", weights_only=True)
        assert resumed.seen == whole.seen[step:], step


def test_slots_are_updates_times_micro_batches(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    module = Recorder(tokenizer)
    data = make_data(updates_per_rollout=3, micro_batches=2)
    trainer = make_trainer(tmp_path, max_steps=4, max_epochs=-1, accumulate_grad_batches=2)
    trainer.fit(module, data)
    assert [seen[1:3] for seen in module.seen] == [divmod(batch, 6) for batch in range(8)]


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_every_stage_sees_all_held_out_prompts_in_order(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, stage: str
) -> None:
    module = Recorder(tokenizer)
    trainer = make_trainer(tmp_path)
    getattr(trainer, stage)(module, datamodule=make_data(evaluation_batch_size=2))
    # No batch mixes tasks.
    assert module.evaluated == [[0, 1], [2], [3, 4]]


def test_evaluation_batches_carry_columns_without_demonstrations(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    batches: list[dict[str, Any]] = []

    class Keeping(Recorder):
        def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
            batches.append(batch)

    data = make_data()
    make_trainer(tmp_path).validate(Keeping(tokenizer), datamodule=data)
    assert [batch["tasks"] for batch in batches] == [["sudoku"] * 3, ["countdown"] * 2]
    for batch, task in zip(batches, data.tasks):
        rows = task.rows("evaluation")
        assert batch["prompts"] == [row["prompt"] for row in rows]
        assert [columns.get("puzzle") for columns in batch["columns"]] == [row.get("puzzle") for row in rows]
        assert not any("completion" in columns for columns in batch["columns"])


def test_mask_and_end_token_of_the_vocabulary_are_text_in_a_prompt(
    undeclaring_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    module = Recorder(undeclaring_tokenizer)
    rows = [{"prompt": "<|mask|>1<|end|>", "puzzle": "0" * 16}]
    data = make_data(tasks=[Broken("train", rows)], prompts_per_rollout=1)
    make_trainer(tmp_path, max_steps=1, limit_val_batches=0).fit(module, data)
    assert undeclaring_tokenizer.decode(module.seen[0][3][0]) == rows[0]["prompt"]
    assert not {END, MASK} & set(module.seen[0][3][0])


@pytest.mark.parametrize("rows", [[], [{"prompt": "1="}], [{"puzzle": "0" * 16}], [{"prompt": "1=", "grid": "0"}]])
def test_unusable_rows_are_refused_before_the_model_is_configured(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    with pytest.raises(UserInputError, match="'broken'"):
        make_data(tasks=[Broken("evaluation", rows)])
    module = Recorder(tokenizer)
    with pytest.raises(UserInputError, match="'broken'"):
        make_trainer(tmp_path, max_steps=1).fit(module, make_data(tasks=[Broken("train", rows)]))
    assert not module.configured


def test_too_long_prompts_are_dropped_with_a_count_or_refused(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    module = Recorder(tokenizer)
    rows = [{"prompt": "1" * length, "puzzle": "0" * 16} for length in (2, 9, 3)]
    data = make_data(tasks=[Broken("train", rows)], max_prompt_length=3)
    with pytest.warns(UserWarning, match="1 of 3 prompts dropped"):
        make_trainer(tmp_path, max_steps=2).fit(module, data)
    assert {token for seen in module.seen for token in seen[0]} == {0, 2}
    data = make_data(tasks=[Broken("train", rows)], max_prompt_length=1)
    with pytest.raises(UserInputError, match="max_prompt_length 1"):
        make_trainer(tmp_path, max_steps=1).fit(Recorder(tokenizer), data)


def test_prompt_ids_do_not_depend_on_what_is_dropped(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    long, short = [{"prompt": "1" * 9, "puzzle": "0" * 16}] * 2, [{"prompt": "1", "puzzle": "0" * 16}] * 2
    module = Recorder(tokenizer)
    other = Broken("train", short)
    other.name = "other"
    data = make_data(tasks=[Broken("train", long[:1] + short[:1]), other], prompts_per_rollout=3, max_prompt_length=2)
    with pytest.warns(UserWarning, match="1 of 2"):
        make_trainer(tmp_path, max_steps=1).fit(module, data)
    assert sorted(module.seen[0][0]) == [1, 2, 3]


def test_reloading_the_order_every_epoch_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=1, reload_dataloaders_every_n_epochs=1)
    with pytest.raises(UserInputError, match="reload_dataloaders_every_n_epochs 1"):
        trainer.fit(Recorder(tokenizer), make_data())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": []}, "tasks is empty"),
        ({"tasks": [Sudoku(1, 1), Sudoku(2, 2)]}, "must be distinct"),
        ({"prompts_per_rollout": 0}, "prompts_per_rollout 0"),
        ({"updates_per_rollout": 0}, "updates_per_rollout 0"),
        ({"micro_batches": -1}, "micro_batches -1"),
        ({"evaluation_batch_size": 0}, "evaluation_batch_size 0"),
        ({"contamination": "maybe"}, "contamination 'maybe' is not one of drop, report, off"),
        ({"task_weights": {"sudoku": 1.0}}, r"the tasks to train on are \['countdown', 'sudoku'\]"),
        ({"task_weights": {"sudoku": 1.0, "countdown": 0.0}}, "task_weights has 0.0"),
        ({"tasks": [Sudoku(1, 1, rewards=[CountdownEquation()])]}, "lacks column numbers, target"),
    ],
)
def test_impossible_settings_are_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        make_data(**settings)


def test_tasks_and_rewards_are_configured_by_name_or_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "users_rewards", __import__("types").ModuleType("users_rewards"))
    monkeypatch.setattr("users_rewards.length_reward", length_reward, raising=False)
    length_reward.__module__ = "users_rewards"
    rewards = [{"class_path": "SudokuGrid", "init_args": {"answer_format": "bare"}}, "users_rewards.length_reward"]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(PromptDataModule, "data")
    task = {"class_path": "Sudoku", "init_args": {"rewards": rewards, "reward_weights": [1.0, 0.1], "train_size": 5}}
    made = parser.instantiate(parser.parse_object({"data": {"tasks": [task]}})).data
    (sudoku,) = made.tasks
    assert isinstance(sudoku, Sudoku)
    grader, function = sudoku.rewards
    assert isinstance(grader, SudokuGrid)
    assert grader.answer_format == "bare"
    assert function is length_reward


@pytest.mark.parametrize(("length", "fits"), [(4, True), (3, False)])
def test_a_prompt_and_its_completion_fit_the_models_context_or_are_refused(length: int, fits: bool) -> None:
    """Two tokens of prompt, four of completion."""
    module = tiny_module(policy=tiny_policy(max_length=length + 2))
    if fits:
        assert train(module, steps=1).global_step == 1
    else:
        with pytest.raises(
            UserInputError, match=r"prompt of 2 tokens and completion_length 4 do not fit .* context of 5"
        ):
            train(module, steps=1)


def test_prompts_that_do_not_fit_the_context_can_be_dropped() -> None:
    class Ragged(Digits):
        def rows(self, split: Split) -> list[dict[str, Any]]:
            return [{**row, "prompt": row["prompt"] * (1 + index % 2)} for index, row in enumerate(super().rows(split))]

    options: dict[str, Any] = {"steps": 1, "tasks": [Ragged()]}
    with pytest.raises(UserInputError, match="max_prompt_length 3 drops those"):
        train(tiny_module(policy=tiny_policy(max_length=7)), **options)
    with pytest.warns(UserWarning, match="4 of 8 prompts dropped"):
        trainer = train(tiny_module(policy=tiny_policy(max_length=7)), data={"max_prompt_length": 3}, **options)
    assert trainer.global_step == 1
