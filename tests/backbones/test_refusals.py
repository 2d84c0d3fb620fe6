"""Checkpoints that are damaged, incomplete, or of another model are refused, and the message says why."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.backbones.golden import (
    BLOCK_CAUSAL,
    GOLDEN,
    Golden,
    change_config,
    change_weights,
    refused,
    with_tokenizer,
)

from stabledrl.backbones import NewPolicy
from stabledrl.backbones.loading import find_backbone
from stabledrl.backbones.translation import PublishedBackbone


@pytest.fixture(params=GOLDEN)
def golden(request: pytest.FixtureRequest) -> Golden:
    return GOLDEN[request.param]


@pytest.fixture
def directory(golden: Golden, tmp_path: Path) -> Path:
    return golden.copy(tmp_path / "model")


@pytest.mark.parametrize("number", [0, -1])
def test_any_missing_tensor_is_named(golden: Golden, tmp_path: Path, number: int) -> None:
    """One tensor of every kind, of the first layer that has it or the last."""
    kinds: dict[str, list[str]] = {}
    for name in golden.weights():
        kinds.setdefault("".join(c for c in name if not c.isdigit()), []).append(name)
    for kind, names in kinds.items():
        directory = golden.copy(tmp_path / kind)
        change_weights(directory, lambda weights, lost=names[number]: weights.pop(lost))
        refused(golden, directory, r"the weights of .* (missing|mismatched) keys \(first: |cannot read the weights")
        shutil.rmtree(directory)


def test_unknown_tensor_is_named(golden: Golden, directory: Path) -> None:
    change_weights(directory, lambda weights: weights.update({"model.extra.weight": torch.zeros(2)}))
    refused(golden, directory, r"1 unexpected keys \(first: model.extra.weight\)")


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_half_written_weights_are_refused(golden: Golden, directory: Path, share: float) -> None:
    file = directory / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    refused(golden, directory, "cannot read the weights")


def test_absent_shard_is_refused(golden: Golden, directory: Path) -> None:
    weights = golden.weights()
    (directory / "model.safetensors").unlink()
    half = dict(list(weights.items())[: len(weights) // 2])
    save_file(half, directory / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    files = {name: f"model-0000{1 if name in half else 2}-of-00002.safetensors" for name in weights}
    index = {"metadata": {"total_size": 1}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(golden, directory, "cannot read the weights")


@pytest.mark.parametrize("other", GOLDEN)
def test_weights_of_another_family_are_refused(golden: Golden, directory: Path, other: str) -> None:
    if other != golden.name:
        shutil.copyfile(GOLDEN[other].path / "model.safetensors", directory / "model.safetensors")
        refused(golden, directory, r"the weights of .* do not fit its config.json: \d+ (missing|unexpected|mismatched)")


@pytest.mark.parametrize("rows", [520, 600])
def test_another_vocabulary_is_refused(golden: Golden, directory: Path, rows: int) -> None:
    change_config(directory, **{"embedding_size" if golden.name == "llada" else "vocab_size": rows})
    refused(golden, directory, r"mismatched keys \(first: .*(embed_tokens|lm_head)")


@pytest.mark.parametrize("mask", [-1, 512, 156895])
def test_mask_token_outside_the_vocabulary_is_refused(golden: Golden, mask: int) -> None:
    refused(golden, golden.path, f"mask_token_id {mask} .* vocabulary of 512", mask_token_id=mask)


def test_published_mask_token_stands_in_for_an_unnamed_one(golden: Golden, directory: Path) -> None:
    """It lies outside of a tiny vocabulary: the message names it."""
    backbone = find_backbone(str(directory))
    assert isinstance(backbone, PublishedBackbone)
    change_config(directory, mask_token_id=None)
    refused(golden, directory, f"mask_token_id {backbone.mask_token_id} ", mask_token_id=None)


@pytest.mark.parametrize("name", ["eos_token_id", "pad_token_id"])
def test_end_token_outside_the_vocabulary_is_refused(golden: Golden, directory: Path, name: str) -> None:
    change_config(directory, eos_token_id=None, pad_token_id=None)
    change_config(directory, **{name: 512})
    refused(golden, directory, "end token id 512 .* vocabulary of 512")


def test_mask_token_that_ends_a_completion_is_refused(golden: Golden) -> None:
    refused(golden, golden.path, "mask_token_id 510 .* end token", mask_token_id=510)


@pytest.mark.parametrize("size", [0, -4, 2.5, True])
def test_impossible_block_size_is_refused(golden: Golden, size: Any) -> None:
    reason = "must be a whole number" if golden.name in BLOCK_CAUSAL else "full-attention model"
    refused(golden, golden.path, f"block_size {size} .*{reason}", block_size=size)


def test_missing_field_is_named(golden: Golden, directory: Path) -> None:
    field = "n_layers" if golden.name == "llada" else "num_hidden_layers"
    change_config(directory, **{field: None})
    refused(golden, directory, f"cannot use config.json of .* \\({golden.family}\\): no {field}")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("llada", "alibi", True),
        ("llada", "input_emb_norm", True),
        ("dream", "use_mrope", True),
        ("dream", "use_sliding_window", True),
        ("sdar", "rope_scaling", {"type": "yarn", "factor": 4.0}),
        ("sdar_moe", "use_sliding_window", True),
        ("llada_moe", "moe_router_score_function", "sigmoid"),
        ("llada_moe", "moe_layer_freq", [0, 1, 1]),
        ("llada2_moe", "score_function", "softmax"),
    ],
)
def test_option_that_would_change_the_logits_is_refused(name: str, field: str, value: Any, tmp_path: Path) -> None:
    directory = GOLDEN[name].copy(tmp_path / "model")
    change_config(directory, **{field: value})
    refused(GOLDEN[name], directory, f"{field} .* is not supported")


def test_corrupt_tokenizer_is_refused(golden: Golden, directory: Path) -> None:
    with_tokenizer(directory, "x")
    (directory / "tokenizer.json").write_text('{"version"')
    refused(golden, directory, "cannot load the tokenizer")


def test_tokenizer_of_another_model_is_refused(golden: Golden, directory: Path) -> None:
    with_tokenizer(directory, "x")
    change_config(directory, eos_token_id=400)
    refused(golden, directory, "end token id 400 .* vocabulary of 1[34]")


def test_tokenizer_larger_than_the_vocabulary_is_refused(golden: Golden, directory: Path) -> None:
    made = NewPolicy(characters="".join(chr(0x4E00 + n) for n in range(600))).build().tokenizer
    made.save_pretrained(directory)
    refused(golden, directory, "60[23] tokens, more than the model's vocabulary of 512")
