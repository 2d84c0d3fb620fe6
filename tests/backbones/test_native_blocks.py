"""Block-causal models in the native layout."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from stabledrl.backbones import NewPolicy, Policy, load_policy
from stabledrl.errors import UserInputError
from stabledrl.export import export_policy


def small(block_size: int | None = 3, **changed: Any) -> Policy:
    shape = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 16, "initializer_range": 0.3}
    return NewPolicy(**{**shape, "block_size": block_size, **changed}).build()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return export_policy(small(), tmp_path / "model")


def change_block(directory: Path, value: object) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "block_length": value}))


def test_a_token_moves_its_own_and_later_blocks_only() -> None:
    policy, tokens = small(), torch.randint(2, 28, (1, 9))
    changed = tokens.clone()
    changed[0, 4] = 2 + (tokens[0, 4] - 1) % 26
    with torch.no_grad():
        moved = (policy.logits(tokens) - policy.logits(changed)).abs().amax(dim=(0, 2))
    assert (moved[:3] == 0).all()
    assert (moved[3:] > 1e-3).all()


def test_the_block_size_survives_saving_and_loading(directory: Path) -> None:
    tokens = torch.randint(2, 28, (2, 8))
    for loaded in (load_policy(directory), load_policy(directory, block_size=3)):
        assert loaded.block_size == 3
        assert loaded.fingerprint == small().fingerprint
        torch.testing.assert_close(loaded.logits(tokens), small().logits(tokens))
    assert AutoModelForCausalLM.from_pretrained(directory).config.block_length == 3


def test_full_attention_models_say_nothing_of_blocks(tmp_path: Path) -> None:
    export_policy(small(None), tmp_path / "model")
    assert "block_length" not in json.loads((tmp_path / "model" / "config.json").read_text())
    assert load_policy(tmp_path / "model").block_size is None


def test_another_block_size_than_the_models_is_refused(directory: Path) -> None:
    with pytest.raises(UserInputError, match=r"block_size 4 given, but .* is a model of block size 3"):
        load_policy(directory, block_size=4)


@pytest.mark.parametrize("value", [0, -1, 2.5, "3", True])
def test_a_block_length_that_is_no_number_of_tokens_is_refused(directory: Path, value: object) -> None:
    change_block(directory, value)
    with pytest.raises(UserInputError, match=r"block_length .* must be a whole number of at least 1"):
        load_policy(directory)


@pytest.mark.parametrize("value", [0, -4])
def test_a_new_model_needs_a_positive_block_size(value: int) -> None:
    with pytest.raises(UserInputError, match=f"block_size {value} must be at least 1"):
        small(value)
