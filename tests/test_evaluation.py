"""Evaluation: a prompt's verdict is its own, every prompt counts once, and means are over all prompts."""

from typing import Any

import pytest
import torch
from tests.test_experience import prompts
from tests.training import Digits, tiny_policy, tiny_sampler

from stabledrl.evaluation import EvaluatedBatch, Evaluator, TaskScores
from stabledrl.processes import Processes
from stabledrl.types import Sample


def evaluator(**settings: Any) -> Evaluator:
    policy = tiny_policy()
    tasks = {"digits": Digits()}
    return Evaluator(tasks=tasks, tokenizer=policy.tokenizer, vocabulary=policy.vocabulary, **settings)


def evaluate(*ids: int, width: int = 2, **settings: Any) -> dict[int, str]:
    done = evaluator(**settings).evaluate(prompts(*ids, width=width), tiny_policy(), tiny_sampler())
    return {sample.prompt_id: sample.completion for sample in done.samples}


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

    done = evaluator().evaluate(prompts(1), forward, tiny_sampler())
    assert seen == [False] * len(seen)
    assert done.steps == len(seen) == tiny_sampler().denoising_steps
    assert done.seconds > 0


def by_several(ids: list[int], count: int, settings: dict[str, Any]) -> list[tuple[EvaluatedBatch, EvaluatedBatch]]:
    """What each of several processes does itself, and what it returns; they run one after the other."""
    own_evaluator, batch, policy = evaluator(**settings), prompts(*ids), tiny_policy()
    own: list[Any] = []
    done: list[EvaluatedBatch] = []
    for returning in (False, True):
        for rank in range(count):

            def exchange(outcome: Any) -> list[Any]:
                if not returning:  # noqa: B023
                    own.append(outcome)
                return own if returning else [outcome]  # noqa: B023

            processes = Processes(rank=rank, count=count, exchange=exchange)
            done.append(own_evaluator.evaluate(batch, policy, tiny_sampler(), processes))
    return list(zip(done[:count], done[count:]))


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("ids", [[4], [7, 2, 5], [1, 2, 3, 4, 5, 6, 7]], ids=len)
@pytest.mark.parametrize("settings", [{}, {"samples_per_prompt": 3, "temperature": 1.0}], ids=["greedy", "sampled"])
def test_processes_share_the_prompts_and_all_have_what_one_would(
    ids: list[int], count: int, settings: dict[str, Any]
) -> None:
    alone = evaluator(**settings).evaluate(prompts(*ids), tiny_policy(), tiny_sampler())
    several = by_several(ids, count, settings)
    for _, returned in several:
        assert returned.samples == alone.samples
    per_prompt = settings.get("samples_per_prompt", 1)
    shares = [len(own.samples) // per_prompt for own, _ in several]
    assert max(shares) - min(shares) <= 1
    # Also a process without a prompt makes forward passes: it may have to gather weights with the others.
    assert all(own.steps > 0 for own, _ in several)


def test_samples_of_a_prompt_stand_side_by_side_and_differ() -> None:
    done = evaluator(samples_per_prompt=4, temperature=1.0).evaluate(prompts(5, 2), tiny_policy(), tiny_sampler())
    assert [(sample.prompt_id, sample.sample_index) for sample in done.samples] == [
        (prompt, index) for prompt in (5, 2) for index in range(4)
    ]
    assert len({sample.completion for sample in done.samples[:4]}) > 1


def test_several_samples_are_taken_as_many_at_a_time_as_there_are_prompts() -> None:
    policy, widest = tiny_policy(), 0

    def forward(token_ids: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        nonlocal widest
        widest = max(widest, len(token_ids))
        logits: torch.Tensor = policy(token_ids, *arguments, **options)
        return logits

    evaluator(samples_per_prompt=5, temperature=1.0).evaluate(prompts(5, 2), forward, tiny_sampler())
    assert widest == 2


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
