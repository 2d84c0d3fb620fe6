import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stabledrl.data.encoding import EncodedPrompt
from stabledrl.data.prompt_loader import EvaluationLoader, PromptLoader, collate
from stabledrl.errors import UserInputError

PAD = 9


def make_prompts(number: int) -> list[EncodedPrompt]:
    return [
        EncodedPrompt(
            token_ids=[1] * (1 + index % 3), prompt=f"p{index}", columns={"n": index}, task="t", prompt_id=index
        )
        for index in range(number)
    ]


def make_loader(prompts: int = 7, size: int = 2, slots: int = 3, seed: int = 0) -> PromptLoader:
    return PromptLoader(make_prompts(prompts), size, slots, seed, PAD)


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def epochs(loader: PromptLoader, number: int) -> list[dict[str, Any]]:
    return [plain(batch) for _ in range(number) for batch in loader]


def ids(batches: list[dict[str, Any]]) -> list[int]:
    """The prompts in the order in which they are shown."""
    return [prompt for batch in batches for prompt in batch["prompt_id"]]


def test_batch_holds_padded_prompts_and_their_rows() -> None:
    prompts = [
        EncodedPrompt(token_ids=[4, 5, 6], prompt="long", columns={"gold": "0320"}, task="a", prompt_id=3),
        EncodedPrompt(token_ids=[7], prompt=[{"role": "user", "content": "x"}], columns={}, task="b", prompt_id=5),
    ]
    batch = collate(prompts, PAD)
    assert batch["prompt_ids"].dtype == batch["prompt_id"].dtype == torch.int64
    assert batch["prompt_mask"].dtype == torch.bool
    assert plain(batch) == {
        "prompt_ids": [[4, 5, 6], [PAD, PAD, 7]],
        "prompt_mask": [[True, True, True], [False, False, True]],
        "prompt_id": [3, 5],
        "prompts": ["long", [{"role": "user", "content": "x"}]],
        "columns": [{"gold": "0320"}, {}],
        "tasks": ["a", "b"],
    }


def test_every_batch_is_handed_out_once_per_slot() -> None:
    batches = epochs(make_loader(), 2)
    assert [(batch["rollout_index"], batch["slot"]) for batch in batches] == list(itertools.product(range(6), range(3)))
    assert {batch["slots"] for batch in batches} == {3}
    for start in range(0, len(batches), 3):
        assert len({str(batch["prompt_id"]) for batch in batches[start : start + 3]}) == 1
    for name in ("rollout_index", "slot", "slots"):
        assert next(iter(make_loader()))[name].shape == ()


def test_an_epoch_shows_every_prompt_at_most_once_and_drops_the_incomplete_batch() -> None:
    loader = make_loader(prompts=7, size=2, slots=1)
    for _ in range(5):
        shown = ids(epochs(loader, 1))
        assert len(shown) == len(set(shown)) == 6
    assert len(loader) == 3


def test_prompts_left_out_differ_between_epochs() -> None:
    loader = make_loader(prompts=3, size=2, slots=1)
    assert set(ids(epochs(loader, 20))) == {0, 1, 2}


def test_order_differs_by_epoch_and_by_seed_and_repeats_for_the_same() -> None:
    orders = {}
    for seed in (0, 1):
        loader = make_loader(prompts=20, size=4, slots=1, seed=seed)
        for epoch in range(3):
            orders[seed, epoch] = str(ids(epochs(loader, 1)))
    assert len(set(orders.values())) == 6
    assert str(ids(epochs(make_loader(prompts=20, size=4, slots=1, seed=1), 1))) == orders[1, 0]


def test_order_ignores_and_leaves_global_random_state() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = epochs(make_loader(), 1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert epochs(make_loader(), 1) == first


def test_resume_at_every_position_equals_uninterrupted() -> None:
    whole = epochs(make_loader(), 3)
    for position in range(len(whole)):
        stopped = make_loader()
        seen: list[dict[str, Any]] = []
        while len(seen) < position:
            for batch in stopped:
                seen.append(plain(batch))
                if len(seen) == position:
                    break
        state = stopped.state_dict()
        assert state["position"] == position
        resumed = make_loader()
        resumed.load_state_dict(state)
        # The rest of the current epoch, then whole ones.
        epoch_length = len(resumed)
        rest = epochs(resumed, 3 - position // epoch_length)
        assert seen + rest == whole


def test_position_counts_the_batch_in_use() -> None:
    loader = make_loader()
    iterator = iter(loader)
    for expected in range(1, 4):
        next(iterator)
        assert loader.state_dict()["position"] == expected


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.integers(0, 60))
def test_kth_batch_is_a_function_of_k(prompts: int, size: int, slots: int, position: int) -> None:
    if prompts < size:
        return
    walked, jumped = make_loader(prompts, size, slots), make_loader(prompts, size, slots)
    jumped.load_state_dict({**jumped.state_dict(), "position": position})
    batches = (batch for _ in itertools.count() for batch in walked)
    expected = next(itertools.islice(batches, position, None))
    assert plain(next(iter(jumped))) == plain(expected)


@pytest.mark.parametrize("changed", [{"prompts": 8}, {"size": 3}, {"slots": 2}], ids=str)
def test_resume_of_another_configuration_is_refused(changed: dict[str, int]) -> None:
    name = {"prompts": "prompts", "size": "prompts_per_rollout", "slots": "slots"}[next(iter(changed))]
    with pytest.raises(UserInputError, match=rf"{name} is \d and was \d"):
        make_loader(**changed).load_state_dict(make_loader().state_dict())


def test_fewer_prompts_than_a_rollout_needs_are_refused() -> None:
    with pytest.raises(UserInputError, match="prompts_per_rollout 4 is more than the 3"):
        make_loader(prompts=3, size=4)
    assert len(make_loader(prompts=4, size=4)) == 3


@pytest.mark.parametrize("batch_size", [1, 2, 5, 50])
def test_evaluation_shows_all_prompts_in_order(batch_size: int) -> None:
    prompts = make_prompts(5)
    loader = EvaluationLoader(prompts, batch_size, PAD)
    for _ in range(2):
        batches = [plain(batch) for batch in loader]
        assert ids(batches) == [0, 1, 2, 3, 4]
        assert len(batches) == len(loader)
        assert [len(batch["tasks"]) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
        assert set(batches[0]) == {"prompt_ids", "prompt_mask", "prompt_id", "prompts", "columns", "tasks"}


@pytest.mark.parametrize("batch_size", [1, 2, 3, 50])
def test_an_evaluation_batch_holds_prompts_of_one_task(batch_size: int) -> None:
    prompts = [replace(prompt, task="a" if prompt.prompt_id < 3 else "b") for prompt in make_prompts(7)]
    loader = EvaluationLoader(prompts, batch_size, PAD)
    batches = [plain(batch) for batch in loader]
    assert ids(batches) == list(range(7))
    assert all(len(set(batch["tasks"])) == 1 for batch in batches)
    assert len(loader) == len(batches) == math.ceil(3 / batch_size) + math.ceil(4 / batch_size)


def make_mixed(weights: dict[str, float]) -> PromptLoader:
    prompts = [replace(prompt, task="ab"[prompt.prompt_id % 2]) for prompt in make_prompts(16)]
    return PromptLoader(prompts, 4, 2, 0, PAD, weights)


def test_weighted_batches_are_a_function_of_their_number_too() -> None:
    whole = epochs(make_mixed({"a": 3.0, "b": 1.0}), 4)
    assert all(sum(number % 2 for number in batch["prompt_id"]) == 1 for batch in whole)
    for position in range(len(whole)):
        loader = make_mixed({"a": 3.0, "b": 1.0})
        loader.load_state_dict({**loader.state_dict(), "position": position})
        assert plain(next(iter(loader))) == whole[position]


@pytest.mark.parametrize("weights", [{"a": 1.0, "b": 3.0}, None])
def test_resume_with_other_weights_is_refused(weights: dict[str, float] | None) -> None:
    kept = make_mixed({"a": 3.0, "b": 1.0}).state_dict()
    with pytest.raises(UserInputError, match="task_weights is"):
        (make_loader(16, 4, 2) if weights is None else make_mixed(weights)).load_state_dict(kept)


def test_the_place_of_a_run_from_before_there_were_weights_is_still_known() -> None:
    kept = make_loader().state_dict()
    del kept["task_weights"]
    make_loader().load_state_dict(kept)
