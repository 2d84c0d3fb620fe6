from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from stabledrl.backbones import NewPolicy, Policy
from stabledrl.data.demonstrations import encode_demonstrations
from stabledrl.errors import UserInputError

LENGTH = 4


@pytest.fixture(scope="module")
def policy() -> Policy:
    return NewPolicy(
        characters="0123456789=<|>endmask", hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8
    ).build()


def encode(policy: Policy, rows: Sequence[Mapping[str, Any]], length: int = LENGTH) -> dict[str, Tensor]:
    return encode_demonstrations(rows, "completion", policy.tokenizer, policy.vocabulary, length)


def test_prompt_is_padded_left_and_completion_filled_with_masks(policy: Policy) -> None:
    encoded = encode(policy, [{"prompt": "12=", "completion": "3"}, {"prompt": "4=", "completion": "56"}])
    ids, attended, scored = encoded["token_ids"], encoded["attention_mask"], encoded["completion_mask"]
    digit = {str(value): policy.tokenizer.convert_tokens_to_ids(str(value)) for value in range(10)}
    equals = policy.tokenizer.convert_tokens_to_ids("=")
    end, mask, pad = (
        policy.vocabulary.end_token_ids[0],
        policy.vocabulary.mask_token_id,
        policy.vocabulary.pad_token_id,
    )
    assert ids.tolist() == [
        [digit["1"], digit["2"], equals, digit["3"], end, mask, mask],
        [pad, digit["4"], equals, digit["5"], digit["6"], end, mask],
    ]
    assert attended.tolist() == [[True] * 7, [False] + [True] * 6]
    assert scored.tolist() == [[True, True, False, False], [True, True, True, False]]


@pytest.mark.parametrize("size", range(LENGTH + 1))
def test_end_token_is_added_where_there_is_room(policy: Policy, size: int) -> None:
    encoded = encode(policy, [{"prompt": "1=", "completion": "7" * size}])
    completion = encoded["token_ids"][0, 2:][encoded["completion_mask"][0]]
    assert (completion == policy.vocabulary.end_token_ids[0]).sum().item() == (size < LENGTH)
    assert len(completion) == min(size + 1, LENGTH)
    if size < LENGTH:
        assert completion[-1].item() == policy.vocabulary.end_token_ids[0]


def test_completion_that_is_too_long_is_refused(policy: Policy) -> None:
    with pytest.raises(UserInputError, match="completion has 5 tokens, more than completion_length 4"):
        encode(policy, [{"prompt": "1=", "completion": "7"}, {"prompt": "1=", "completion": "7" * 5}])


@pytest.mark.parametrize("prompts", [[""], ["", "12"]])
def test_empty_prompt_is_encoded(policy: Policy, prompts: list[str]) -> None:
    encoded = encode(policy, [{"prompt": prompt, "completion": "1"} for prompt in prompts])
    assert encoded["token_ids"].dtype == torch.int64
    assert encoded["attention_mask"][0].sum().item() == LENGTH


@pytest.mark.parametrize("name", ["<|end|>", "<|mask|>"])
@pytest.mark.parametrize("column", ["prompt", "completion"])
def test_spelled_out_special_token_stays_data(policy: Policy, name: str, column: str) -> None:
    row = {"prompt": "1=", "completion": "2", column: name}
    encoded = encode(policy, [row], length=10)
    width = encoded["token_ids"].shape[1] - 10
    kept = encoded["token_ids"][0, width:] if column == "completion" else encoded["token_ids"][0, :width]
    assert policy.tokenizer.decode(kept[: len(name)].tolist()) == name
    assert not {policy.vocabulary.mask_token_id, *policy.vocabulary.end_token_ids} & set(kept[: len(name)].tolist())


def test_unknown_character_is_refused(policy: Policy) -> None:
    with pytest.raises(UserInputError, match="cannot encode"):
        encode(policy, [{"prompt": "1=", "completion": "Q"}])


def test_chat_prompt_goes_through_the_template() -> None:
    policy = NewPolicy(characters="0123=u:", hidden_size=8, num_layers=1, num_heads=2).build()
    policy.tokenizer.chat_template = "{% for m in messages %}u:{{ m.content }}{% endfor %}="
    chat = encode(policy, [{"prompt": [{"role": "user", "content": "12"}], "completion": "3"}])
    assert torch.equal(chat["token_ids"], encode(policy, [{"prompt": "u:12=", "completion": "3"}])["token_ids"])
