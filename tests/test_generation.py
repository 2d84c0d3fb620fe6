"""Prompts repeated by group, completions in parts, grading by task."""

from typing import Any

import pytest
import torch
from tests.test_experience import prompts
from tests.training import Digits, Fixed, tiny_policy, tiny_sampler

from stabledrl.generation import Prompts, generate, grade
from stabledrl.randomness import row_keys


def test_a_groups_completions_stand_side_by_side() -> None:
    repeated = Prompts.from_batch(prompts(5, 2), group_size=3)
    assert repeated.prompt_id.tolist() == [5, 5, 5, 2, 2, 2]
    assert repeated.sample_index.tolist() == [0, 1, 2, 0, 1, 2]
    assert repeated.prompts == ["5="] * 3 + ["2="] * 3
    assert [row["gold"] for row in repeated.columns] == ["5"] * 3 + ["2"] * 3
    assert torch.equal(repeated.ids[0], repeated.ids[2])
    assert not torch.equal(repeated.ids[2], repeated.ids[3])


@pytest.mark.parametrize("rows", [1, 4, 6, 10])
def test_completions_do_not_depend_on_rows_per_forward(rows: int) -> None:
    policy, repeated = tiny_policy(), Prompts.from_batch(prompts(5, 2), group_size=3)
    keys = row_keys(0, 0, repeated.prompt_id, repeated.sample_index)
    options: dict[str, Any] = {"vocabulary": policy.vocabulary, "row_keys": keys, "temperature": 1.0}
    whole = generate(policy, tiny_sampler(), repeated, **options)
    parts = generate(policy, tiny_sampler(), repeated, rows_per_forward=rows, **options)
    assert torch.equal(whole.token_ids, parts.token_ids)
    assert torch.equal(whole.completion_mask, parts.completion_mask)
    assert len(set(map(tuple, whole.token_ids.tolist()))) > 1


def graded(batch: dict[str, Any], tasks: dict[str, Any], *token_ids: int) -> list[Any]:
    policy, own = tiny_policy(), Prompts.from_batch(batch)
    options: dict[str, Any] = {"vocabulary": policy.vocabulary, "row_keys": own.prompt_id, "temperature": 0.0}
    completions = generate(policy, Fixed(*token_ids), own, **options)
    return grade(completions, own, tasks=tasks, tokenizer=policy.tokenizer)


def test_text_ends_before_the_end_token() -> None:
    task = Digits()
    three, end = tiny_policy().tokenizer.convert_tokens_to_ids("3"), 0
    (sample,) = graded(prompts(5), {"digits": task}, three, three, end, three)
    assert (sample.completion, sample.length) == ("33", 3)


def test_samples_come_in_the_order_of_the_prompts_and_a_task_is_called_once() -> None:
    calls: list[list[str]] = []

    def score(prompts: list[str], completions: list[str], gold: list[str], **columns: Any) -> list[float]:
        calls.append(gold)
        return [float(own) for own in gold]

    tasks = {name: Digits(score, name) for name in ("b", "a", "unused")}
    batch = {**prompts(1, 2, 3, 4), "tasks": ["a", "b", "a", "b"]}
    samples = graded(batch, tasks, 3)
    assert [sample.reward for sample in samples] == [1, 2, 3, 4]
    assert [sample.task for sample in samples] == ["a", "b", "a", "b"]
    assert sorted(calls) == [["1", "3"], ["2", "4"]]


def test_a_chat_is_shown_as_text() -> None:
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "5="}]
    task = Digits(lambda prompts, completions: [1.0])
    (sample,) = graded({**prompts(5), "prompts": [chat]}, {"digits": task}, 3)
    assert sample.prompt == "system: Be short.\nuser: 5="
