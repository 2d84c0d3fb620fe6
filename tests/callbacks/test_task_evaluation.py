"""TaskEvaluation: at the start, every N steps and at the end, once each; not after a signal."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from tests.training import Digits, Once, events, small_digits, tiny_module, train

from stabledrl.callbacks import GracefulStop, RunCheckpoint, TaskEvaluation
from stabledrl.errors import UserInputError

NAME = "val/digits/accuracy"


def evaluated(
    directory: Path, *callbacks: Callback, evaluation: TaskEvaluation, steps: int, **options: Any
) -> list[int]:
    """The steps at which an accuracy was logged."""
    train(tiny_module(), evaluation, *callbacks, steps=steps, log_to=directory, **options)
    return [step for step, values in events(directory).get(NAME, {}).items() for _ in values]


@pytest.mark.parametrize(
    ("every", "at_start", "steps", "expected"),
    [
        (2, True, 5, [0, 2, 4, 5]),
        (2, True, 4, [0, 2, 4]),
        (3, False, 5, [3, 5]),
        (None, True, 3, [0, 3]),
        (None, False, 3, [3]),
        (10, True, 3, [0, 3]),
    ],
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_evaluates_at_start_at_intervals_and_at_the_end_once_each(
    tmp_path: Path, every: int | None, at_start: bool, steps: int, expected: list[int], accumulate: int
) -> None:
    evaluation = TaskEvaluation(every_n_steps=every, at_start=at_start)
    assert evaluated(tmp_path, evaluation=evaluation, steps=steps, accumulate=accumulate) == expected


def test_lightnings_own_validation_is_off_while_training_and_back_after() -> None:
    trainer = train(tiny_module(), TaskEvaluation(), steps=2, limit_val_batches=1.0, val_check_interval=1)
    assert trainer.limit_val_batches == 1.0
    (result,) = trainer.validate(trainer.lightning_module, datamodule=trainer.datamodule, verbose=False)  # type: ignore[attr-defined]
    assert NAME in result


def seven_or_more(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    return [float(any(character in "789" for character in text)) for text in completions]


@pytest.mark.parametrize("score", [small_digits, seven_or_more])
def test_accuracy_does_not_depend_on_the_evaluation_batch_size(score: Any) -> None:
    found = []
    for size in (1, 3, 8):
        evaluation = TaskEvaluation()
        train(
            tiny_module(),
            evaluation,
            steps=2,
            tasks=[Digits(score), Digits(small_digits, "other")],
            data={"evaluation_batch_size": size},
        )
        found.append((evaluation.first, evaluation.last))
    assert found[0] == found[1] == found[2]
    assert found[0][0].keys() == {
        f"val/{name}/{kind}" for name in ("digits", "other") for kind in ("accuracy", "reward")
    }


def test_accuracy_is_the_share_of_correct_completions() -> None:
    def gold(prompts: list[str], completions: list[str], **columns: Any) -> list[float | None]:
        return [{"0": None, "1": 1.0, "2": 1.0}.get(own, 0.0) for own in columns["gold"]]

    evaluation = TaskEvaluation()
    train(tiny_module(), evaluation, steps=1, tasks=[Digits(gold)])
    assert evaluation.last["val/digits/accuracy"] == pytest.approx(2 / 8)  # no verdict counts as wrong
    assert evaluation.last["val/digits/reward"] == pytest.approx(2 / 7)


def test_a_resumed_run_does_not_evaluate_again_and_remembers_the_start(tmp_path: Path) -> None:
    first = TaskEvaluation(every_n_steps=2)
    checkpoint = RunCheckpoint(dirpath=str(tmp_path))
    assert evaluated(tmp_path / "a", checkpoint, evaluation=first, steps=4) == [0, 2, 4]
    second = TaskEvaluation(every_n_steps=2)
    path = tmp_path / "last.ckpt"
    assert evaluated(tmp_path / "b", evaluation=second, steps=7, ckpt_path=path) == [6, 7]
    assert second.first == first.first


def test_a_monitored_accuracy_is_known_right_after_a_resume(tmp_path: Path) -> None:
    def part(name: str, steps: int, resume: Path | None = None) -> None:
        checkpoint = RunCheckpoint(dirpath=str(tmp_path / name), every_n_train_steps=1, monitor=NAME, keep_best=2)
        train(tiny_module(), TaskEvaluation(every_n_steps=10), checkpoint, steps=steps, ckpt_path=resume)

    part("a", 2)
    part("b", 4, tmp_path / "a" / "last.ckpt")
    # Kept for the score from before: no evaluation is due until the end.
    assert (tmp_path / "b" / "step-000003.ckpt").exists()


@pytest.mark.parametrize("order", [0, 1])
def test_no_evaluation_after_a_signal(tmp_path: Path, order: int) -> None:
    interrupt = Once(lambda trainer, module: os.kill(os.getpid(), signal.SIGTERM), 1)
    evaluation, stop = TaskEvaluation(every_n_steps=2), GracefulStop()
    callbacks = [interrupt, stop] if order else [stop, interrupt]
    assert evaluated(tmp_path, *callbacks, evaluation=evaluation, steps=6) == [0]


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(UserInputError, match="every_n_steps 0 must be at least 1"):
        TaskEvaluation(every_n_steps=0)
