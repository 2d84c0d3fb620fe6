"""Evaluation: a prompt's verdict is its own, and means are over all prompts."""

import pytest
import torch
from tests.test_experience import prompts
from tests.training import Digits, tiny_policy, tiny_sampler

from stabledrl.evaluation import TaskScores, evaluate_batch
from stabledrl.types import Sample


def evaluate(*ids: int, width: int = 2, temperature: float = 0.0, seed: int = 0) -> dict[int, str]:
    policy = tiny_policy()
    samples = evaluate_batch(
        prompts(*ids, width=width),
        policy,
        tiny_sampler(),
        tasks={"digits": Digits()},
        tokenizer=policy.tokenizer,
        vocabulary=policy.vocabulary,
        temperature=temperature,
        seed=seed,
    )
    return {sample.prompt_id: sample.completion for sample in samples}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_prompts_completion_does_not_depend_on_its_batch(temperature: float) -> None:
    whole = evaluate(1, 2, 3, 4, temperature=temperature)
    single = {own: evaluate(own, width=own + 1, temperature=temperature)[own] for own in (1, 2, 3, 4)}
    assert whole == single
    assert whole == evaluate(4, 3, 2, 1, temperature=temperature)


def test_greedy_completions_do_not_depend_on_the_seed_and_sampled_ones_do() -> None:
    assert evaluate(1, 2, 3) == evaluate(1, 2, 3, seed=1)
    assert evaluate(1, 2, 3, temperature=1.0) != evaluate(1, 2, 3, temperature=1.0, seed=1)


def test_no_gradient_is_recorded() -> None:
    policy = tiny_policy()
    seen: list[bool] = []

    def forward(*arguments: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = policy(*arguments, **options)
        seen.append(logits.requires_grad)
        return logits

    evaluate_batch(
        prompts(1),
        forward,  # type: ignore[arg-type]
        tiny_sampler(),
        tasks={"digits": Digits()},
        tokenizer=policy.tokenizer,
        vocabulary=policy.vocabulary,
    )
    assert seen == [False] * len(seen)
    assert seen


def sample(task: str, correct: bool | None, reward: float | None) -> Sample:
    return Sample(
        task=task,
        prompt_id=0,
        sample_index=0,
        prompt="",
        completion="",
        reward=reward,
        correct=correct,
        answer=None,
        reason="",
        length=1,
    )


def test_scores_are_means_over_samples_whatever_the_batches() -> None:
    samples = [sample("a", True, 1.0), sample("a", False, 0.25), sample("a", None, None), sample("b", True, 1.0)]
    whole, single = TaskScores(["a", "b", "unseen"]), TaskScores(["a", "b", "unseen"])
    whole.update(samples)
    for own in samples:
        single.update([own])
    expected = {
        "val/a/accuracy": pytest.approx(1 / 3),
        "val/a/reward": pytest.approx(0.625),
        "val/b/accuracy": 1.0,
        "val/b/reward": 1.0,
    }
    assert whole.compute("val") == expected
    assert single.compute("val") == expected


def test_a_task_without_any_reward_has_an_accuracy_only() -> None:
    scores = TaskScores(["a"])
    scores.update([sample("a", None, None)])
    assert scores.compute("test") == {"test/a/accuracy": 0.0}
