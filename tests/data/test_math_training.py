"""The mathematical tasks train and evaluate a tiny model, from files in the layout of the public data sets."""

import string
from pathlib import Path

import pytest
from lightning.pytorch import Trainer
from tests.training import Fixed, Recorder, small_digits, tiny_module, tiny_policy, train

from stabledrl.data import AIME, GSM8K, MATH
from stabledrl.protocols import Task
from stabledrl.rewards import MathAnswer

FILES = Path(__file__).parent / "files"
CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"


def gsm8k() -> Task:
    grader = MathAnswer(answer_format="bare")
    return GSM8K(
        str(FILES / "gsm8k"), prompt_style="compact", rewards=[grader, small_digits], reward_weights=[1.0, 0.5]
    )


def math() -> Task:
    grader = MathAnswer(answer_format="bare")
    return MATH(
        str(FILES / "hendrycks_math"),
        str(FILES / "math_500"),
        prompt_style="compact",
        rewards=[grader, small_digits],
        reward_weights=[1.0, 0.5],
    )


def aime() -> Task:
    return AIME(sources={2024: str(FILES / "aime_2024"), 2025: str(FILES / "aime25")}, prompt_style="compact")


@pytest.mark.parametrize(
    ("tasks", "weights"), [([gsm8k], None), ([math], None), ([gsm8k, math], {"gsm8k": 1.0, "math": 3.0})]
)
def test_two_steps_and_an_evaluation_of_every_task(
    tasks: list[type[Task]], weights: dict[str, float] | None, tmp_path: Path
) -> None:
    made = [task() for task in tasks]
    recorder = Recorder()
    module = tiny_module(policy=tiny_policy(characters=CHARACTERS))
    data = {"evaluation_tasks": [aime()], "task_weights": weights, "contamination": "drop"}
    trainer = train(module, recorder, steps=2, prompts=4, tasks=made, data=data)
    assert trainer.global_step == 2
    names = {task.name for task in made}
    assert {name for batch in recorder.batches for name in batch["tasks"]} == names
    if weights:
        assert recorder.batches[0]["tasks"].count("math") == 3
    tester = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    tester.test(module, datamodule=trainer.datamodule, verbose=False)
    assert {f"test/{name}/accuracy" for name in [*names, "aime"]} <= tester.callback_metrics.keys()


def test_right_answers_of_a_policy_count_as_accuracy() -> None:
    policy = tiny_policy(characters=CHARACTERS)
    five = policy.tokenizer.convert_tokens_to_ids("5")
    module = tiny_module(policy=policy, sampler=Fixed(five, policy.vocabulary.end_token_ids[0]))
    trainer = train(module, steps=1, tasks=[gsm8k()], data={"contamination": "drop"})
    tester = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    tester.test(module, datamodule=trainer.datamodule, verbose=False)
    assert tester.callback_metrics["test/gsm8k/accuracy"] == 0.25
