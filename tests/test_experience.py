"""From prompts to a RolloutBatch: pairing, independence of the batch, honest numbers."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.experiences import LIKELIHOOD, collect, collector, prompts
from tests.training import Digits, Fixed, Scripted, level, same, tiny_policy

from stabledrl.errors import UserInputError
from stabledrl.experience import Experience, score
from stabledrl.rollout_metrics import identical_groups


def by_key(experience: Experience) -> dict[tuple[int, int], tuple[Any, ...]]:
    """What was sampled, graded and estimated, by prompt and number within the group."""
    rollouts = experience.rollouts
    return {
        (own.prompt_id, own.sample_index): (own.completion, own.reward, rollouts.old.elbo[row].item())
        for row, own in enumerate(experience.samples)
    }


def test_prompts_samples_and_golds_pair_up() -> None:
    seen: list[tuple[str, str]] = []

    def names_gold(prompts: list[str], completions: list[str], gold: list[str], **columns: Any) -> list[float]:
        seen.extend(zip(prompts, gold))
        return [10.0 * int(own) + index % 3 for index, own in enumerate(gold)]

    experience = collect(prompts(5, 2), Digits(names_gold))
    assert seen == [("5=", "5")] * 3 + [("2=", "2")] * 3
    assert [(own.prompt_id, own.sample_index, own.prompt) for own in experience.samples] == [
        (own, index, f"{own}=") for own in (5, 2) for index in range(3)
    ]
    assert experience.rollouts.rewards.tolist() == [50, 51, 52, 20, 21, 22]
    assert experience.rollouts.advantages.tolist() == [-1, 0, 1, -1, 0, 1]
    assert experience.rollouts.group_index.tolist() == [0, 0, 0, 1, 1, 1]
    assert [own.advantage for own in experience.samples] == [-1, 0, 1, -1, 0, 1]


def test_each_task_grades_its_own_completions() -> None:
    first = Digits(lambda prompts, completions, gold: [float(own) for own in gold], "first")
    second = Digits(lambda prompts, completions, gold: [-float(own) for own in gold], "second")
    batch = {**prompts(1, 2, 3), "tasks": ["first", "second", "first"]}
    experience = collect(batch, tasks={"first": first, "second": second}, group_size=2)
    assert [own.reward for own in experience.samples] == [1, 1, -2, -2, 3, 3]
    assert [own.task for own in experience.samples] == ["first"] * 2 + ["second"] * 2 + ["first"] * 2


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 100])
def test_rows_per_forward_changes_nothing(rows: int) -> None:
    whole, parts = collect(prompts(5, 2)), collect(prompts(5, 2), rows_per_forward=rows)
    assert torch.equal(whole.rollouts.sequences.token_ids, parts.rollouts.sequences.token_ids)
    torch.testing.assert_close(whole.rollouts.old.elbo, parts.rollouts.old.elbo, rtol=0, atol=1e-5)
    assert torch.equal(whole.rollouts.old.scored, parts.rollouts.old.scored)


@pytest.mark.parametrize("batch", [prompts(2, 5), prompts(5), prompts(7, 5, 1), prompts(5, 2, width=6)])
def test_samples_do_not_depend_on_order_or_company(batch: dict[str, Any]) -> None:
    expected, found = by_key(collect(prompts(5, 2))), by_key(collect(batch))
    shared = expected.keys() & found.keys()
    assert len(shared) >= 3
    for key in shared:
        assert found[key][:2] == expected[key][:2]
        assert found[key][2] == pytest.approx(expected[key][2], abs=1e-5)


@pytest.mark.parametrize("change", [{"seed": 1}, {"rollout_index": 8}, {"rollback_count": 1}])
def test_seed_rollout_and_rollback_change_the_samples(change: dict[str, int]) -> None:
    batch = prompts(5, 2)
    if "rollout_index" in change:
        batch["rollout_index"] = torch.tensor(change["rollout_index"])
    own = collector(seed=change.get("seed", 0))
    other = own.collect(batch, tiny_policy(), rollback_count=change.get("rollback_count", 0))
    assert [s.completion for s in other.samples] != [s.completion for s in collect(prompts(5, 2)).samples]


def test_global_random_state_changes_nothing_and_is_not_used() -> None:
    first = by_key(collect(prompts(5, 2)))
    torch.manual_seed(1234)
    state = torch.get_rng_state()
    batch, own, policy = prompts(5, 2), collector(), tiny_policy()
    assert by_key(own.collect(batch, policy)) == first
    assert torch.equal(torch.get_rng_state(), state)


def test_the_old_estimate_is_the_policys_on_the_shared_masks() -> None:
    experience, policy = collect(prompts(5, 2)), tiny_policy()
    sequences = experience.rollouts.sequences
    corruption = LIKELIHOOD.corrupt(sequences, update=None)
    again = LIKELIHOOD(policy, sequences, corruption, vocabulary=policy.vocabulary)
    torch.testing.assert_close(experience.rollouts.old.elbo, again.elbo.detach(), rtol=0, atol=1e-6)
    assert not experience.rollouts.old.elbo.requires_grad
    assert experience.rollouts.reference is None


def test_the_reference_is_scored_on_the_same_masks() -> None:
    other = tiny_policy(seed=1)
    experience = collector().collect(prompts(5, 2), tiny_policy(), reference=other)
    reference = experience.rollouts.reference
    assert reference is not None
    assert torch.equal(reference.scored, experience.rollouts.old.scored)
    assert not torch.equal(reference.elbo, experience.rollouts.old.elbo)


def test_kept_logits_are_dropped_without_gradient() -> None:
    likelihood = dataclasses.replace(LIKELIHOOD, keep_logits=True)
    assert collect(prompts(5), likelihood=likelihood).rollouts.old.logits is None


@pytest.mark.parametrize(
    ("ids", "length"), [((0, 3, 3, 3), 1), ((3, 0, 3, 3), 2), ((3, 3, 3, 0), 4), ((3, 3, 3, 3), 4)]
)
def test_nothing_after_the_end_token_is_scored_or_kept(ids: Sequence[int], length: int) -> None:
    experience, policy = collect(prompts(5), sampler=Fixed(*ids)), tiny_policy()
    rollouts = experience.rollouts
    assert rollouts.sequences.lengths.tolist() == [length] * 3
    assert (rollouts.sequences.completion_ids[:, length:] == policy.vocabulary.mask_token_id).all()
    assert rollouts.sequences.attention_mask.all()
    assert not rollouts.old.scored[:, :, length:].any()
    assert rollouts.old.scored.any(dim=2).all()
    assert rollouts.old.elbo.isfinite().all()
    assert (rollouts.old.elbo < 0).all()
    assert [own.length for own in experience.samples] == [length] * 3


def test_an_empty_completion_reaches_the_grader_as_empty_text() -> None:
    texts: list[str] = []

    def keeps(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        texts.extend(completions)
        return [float(bool(text)) for text in completions]

    experience = collect(prompts(5), Digits(keeps), sampler=Fixed(0, 3))
    assert texts == [""] * 3
    assert experience.metrics["rollout/reward_mean"] == 0
    assert experience.metrics["rollout/zero_variance_groups"] == 1


@pytest.mark.parametrize("count", [1, 3, 7, 9])
@pytest.mark.parametrize("over", [0, 1])
def test_the_ungraded_share_may_be_reached_but_not_passed(count: int, over: int) -> None:
    script = Scripted(lambda rows: [None] * (count + over) + [0.5] * (rows - count - over))
    arguments = {"batch": prompts(1, 2), "task": Digits(script), "group_size": 5, "max_ungraded_share": count / 10}
    if over:
        with pytest.raises(
            UserInputError, match=f"{(count + 1) * 10}% of this rollout's.*max_ungraded_share {count * 10}%"
        ):
            collect(**arguments)
    else:
        assert collect(**arguments).metrics["rollout/ungraded"] == pytest.approx(count / 10)


def test_metrics_are_over_graded_completions() -> None:
    script = Scripted(lambda rows: [1.0, 0.0, None, 0.5, 0.5, 0.5])
    metrics = collect(prompts(1, 2), Digits(script)).metrics
    assert metrics["rollout/reward_mean"] == pytest.approx(0.5)
    assert metrics["rollout/reward_std"] == pytest.approx((0.5 / 5) ** 0.5)
    assert metrics["rollout/accuracy"] == pytest.approx(1 / 6)
    assert metrics["rollout/zero_variance_groups"] == 0.5
    assert metrics["rollout/ungraded"] == pytest.approx(1 / 6)
    assert metrics["rollout/tokens_per_second"] > 0


def test_identical_groups_are_counted_by_prompt() -> None:
    samples = collect(prompts(1, 2), Digits(Scripted(level(0.5)))).samples
    texts = ["a", "a", "a", "a", "b", "a"]
    changed = [dataclasses.replace(own, completion=text) for own, text in zip(samples, texts)]
    assert identical_groups(changed, torch.tensor([0, 0, 0, 1, 1, 1])) == 0.5


def test_score_takes_rows_in_parts() -> None:
    experience, policy = collect(prompts(5, 2)), tiny_policy()
    sequences = experience.rollouts.sequences
    corruption = LIKELIHOOD.corrupt(sequences, update=1)
    estimates = [
        score(LIKELIHOOD, policy, sequences, corruption, vocabulary=policy.vocabulary, rows_per_forward=rows)
        for rows in (None, 1, 4)
    ]
    assert len({estimate.elbo.shape for estimate in estimates}) == 1
    for estimate in estimates[1:]:
        torch.testing.assert_close(estimate.elbo, estimates[0].elbo, rtol=0, atol=1e-5)


def test_a_groups_samples_and_masks_are_drawn_independently() -> None:
    experience = collect(prompts(5, 2), group_size=8)
    for group in (experience.samples[:8], experience.samples[8:]):
        assert len({own.completion for own in group}) > 4
    fixed = collect(prompts(5), sampler=Fixed(3, 4, 5, 6), group_size=8).rollouts
    assert len(fixed.sequences.row_keys.unique()) == 8
    assert len(fixed.old.scored.flatten(1).unique(dim=0)) > 1


def test_collecting_twice_is_the_same() -> None:
    first, second = collect(prompts(5, 2)), collect(prompts(5, 2))
    assert same(first.rollouts.state_dict(), second.rollouts.state_dict())
