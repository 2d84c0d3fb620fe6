from typing import Any

import pytest
import torch

from stabledrl.backbones import NewPolicy, Policy
from stabledrl.backbones.native import Native
from stabledrl.data.encoding import encode_text
from stabledrl.errors import UserInputError

SMALL = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}


def small(**changed: object) -> Policy:
    return NewPolicy(**{**SMALL, **changed}).build()  # type: ignore[arg-type]


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in policy.state_dict().values()])


def test_same_seed_same_weights() -> None:
    assert torch.equal(weights(small(seed=3)), weights(small(seed=3)))


def test_other_seed_other_weights() -> None:
    assert not torch.equal(weights(small(seed=3)), weights(small(seed=4)))


def test_weights_do_not_depend_on_global_state() -> None:
    first = weights(small())
    torch.manual_seed(1234)
    torch.rand(5)
    assert torch.equal(weights(small()), first)


def test_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    small(seed=77)
    assert torch.equal(torch.get_rng_state(), before)


def test_model_is_made_on_the_cpu_even_where_the_default_device_is_another() -> None:
    with torch.device("meta"):
        made = small()
    assert torch.equal(weights(made), weights(small()))


def test_initializer_range_is_the_spread_of_the_weights() -> None:
    embedding: Any = small(hidden_size=64, initializer_range=0.2).model.get_input_embeddings().weight
    assert embedding.std().item() == pytest.approx(0.2, rel=0.1)
    assert embedding.mean().item() == pytest.approx(0, abs=0.02)


def test_vocabulary_is_the_tokenizers() -> None:
    policy = small(characters="ab")
    vocabulary, tokenizer = policy.vocabulary, policy.tokenizer
    assert vocabulary.num_candidates == policy.model.config.vocab_size == len(tokenizer) == 4
    assert vocabulary.mask_token_id == tokenizer.mask_token_id == policy.model.config.mask_token_id
    assert vocabulary.end_token_ids == (tokenizer.eos_token_id,)
    assert vocabulary.pad_token_id == tokenizer.eos_token_id
    assert policy.model.config.pad_token_id is None


def test_every_character_is_one_token_and_comes_back() -> None:
    text = NewPolicy().characters + " \n\n  12:3  "
    tokenizer = small().tokenizer
    ids = encode_text(tokenizer, text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", ["1Q2", "é", "1\t2", "😀", "<|end|>"])
def test_unknown_character_is_an_error(text: str) -> None:
    with pytest.raises(UserInputError, match="cannot encode"):
        encode_text(small().tokenizer, text)


@pytest.mark.parametrize("name", ["<|end|>", "<|mask|>"])
def test_spelled_out_special_token_is_data(name: str) -> None:
    policy = small(characters="<|>endmaskx")
    text = f"ax{name}s"
    ids = encode_text(policy.tokenizer, text)
    assert len(ids) == len(text)
    assert not {*policy.vocabulary.end_token_ids, policy.vocabulary.mask_token_id} & set(ids)
    assert policy.tokenizer.decode(ids) == text


def test_decoding_can_drop_special_tokens() -> None:
    policy = small()
    ids = [*encode_text(policy.tokenizer, "12"), policy.vocabulary.mask_token_id, policy.vocabulary.end_token_ids[0]]
    assert policy.tokenizer.decode(ids, skip_special_tokens=True) == "12"
    assert policy.tokenizer.decode(ids) != "12"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"characters": "aba"}, "distinct"),
        ({"characters": ""}, "at least one"),
        ({"hidden_size": 0}, "hidden_size 0"),
        ({"num_layers": 0}, "num_layers 0"),
        ({"num_heads": -1}, "num_heads -1"),
        ({"intermediate_size": 0}, "intermediate_size 0"),
        ({"max_length": 0}, "max_length 0"),
        ({"hidden_size": 16, "num_heads": 3}, "hidden_size 16"),
        ({"hidden_size": 6, "num_heads": 2}, "hidden_size 6"),
    ],
)
def test_impossible_shape_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        small(**values)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"is_causal": False, "mask_token_id": 1}, True),
        ({"is_causal": False, "mask_token_id": None}, True),
        ({"is_causal": True, "mask_token_id": 1}, False),
        ({"mask_token_id": 1}, False),
        ({"is_causal": False}, False),
        ({"is_causal": 0, "mask_token_id": 1}, False),
        ({"is_causal": False, "mask_token_id": 1, "auto_map": {}}, False),
        ({}, False),
    ],
)
def test_family_is_recognised_by_its_config(config: dict[str, object], expected: bool) -> None:
    assert Native().matches(config) is expected
