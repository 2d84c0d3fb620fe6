"""Reading published checkpoints: full-size shapes, block sizes, tokenizers, the hub's cache."""

import json
from pathlib import Path

import pytest
import torch
from tests.backbones.golden import (
    BLOCK_CAUSAL,
    GOLDEN,
    MASK,
    Golden,
    change_config,
    refused,
    with_tokenizer,
)
from transformers import AutoModelForCausalLM

from stabledrl.backbones import load_policy
from stabledrl.backbones.dream import Dream
from stabledrl.backbones.llada import Llada
from stabledrl.backbones.loading import find_backbone
from stabledrl.backbones.sdar import Sdar
from stabledrl.backbones.sdar_moe import SdarMoe
from stabledrl.backbones.translation import PublishedBackbone
from stabledrl.errors import UserInputError
from stabledrl.export import export_policy

LLADA_8B = {
    "d_model": 4096,
    "embedding_size": 126464,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12288,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "vocab_size": 126464,
}
SDAR_8B = {
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
}
DREAM_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}
SDAR_30B = {
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "vocab_size": 151936,
}


@pytest.mark.parametrize(
    ("backbone", "golden", "shape", "count"),
    [
        (Llada(), "llada", LLADA_8B, 8_015_581_184),
        (Sdar(), "sdar", SDAR_8B, 8_190_735_360),
        (Dream(), "dream", DREAM_7B, 7_615_616_512),
        (SdarMoe(), "sdar_moe", SDAR_30B, 30_532_122_624),
    ],
)
def test_full_size_model_has_the_published_number_of_parameters(
    backbone: PublishedBackbone, golden: str, shape: dict[str, int], count: int
) -> None:
    config = {**GOLDEN[golden].config(), **shape}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(backbone.native_config(config))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.fixture(params=GOLDEN)
def golden(request: pytest.FixtureRequest) -> Golden:
    return GOLDEN[request.param]


@pytest.fixture
def directory(golden: Golden, tmp_path: Path) -> Path:
    return golden.copy(tmp_path / "model")


def test_config_alone_tells_the_family(golden: Golden) -> None:
    assert find_backbone(str(golden.path)).family == golden.family


def test_both_model_types_of_llada_with_experts_are_told_from_llada(tmp_path: Path) -> None:
    directory = GOLDEN["llada_moe"].copy(tmp_path / "model")
    change_config(directory, model_type="llada")
    assert find_backbone(str(directory)).family == "llada_moe"
    assert find_backbone(str(GOLDEN["llada"].path)).family == "llada"


def test_config_that_asks_for_code_runs_none(golden: Golden, directory: Path) -> None:
    classes = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer")
    change_config(directory, auto_map={name: f"code.{name}" for name in classes})
    marker = directory / "ran"
    (directory / "code.py").write_text(f"open({str(marker)!r}, 'w')\n")
    golden.load(directory)
    assert not marker.exists()


@pytest.mark.parametrize("name", BLOCK_CAUSAL)
def test_block_size_comes_from_argument_then_config_then_family(name: str, tmp_path: Path) -> None:
    golden = GOLDEN[name]
    directory = golden.copy(tmp_path / "model")
    change_config(directory, block_size=None)
    assert load_policy(directory, mask_token_id=MASK).block_size == (32 if name == "llada2_moe" else 4)
    change_config(directory, block_size=0)
    refused(golden, directory, "block_size 0", block_size=None)
    change_config(directory, block_size=16)
    assert load_policy(directory, mask_token_id=MASK).block_size == 16
    assert load_policy(directory, mask_token_id=MASK, block_size=2).block_size == 2


def test_half_precision_is_what_was_asked_for(golden: Golden) -> None:
    policy = golden.load(dtype=torch.bfloat16)
    kept = {name.split(".", 3)[-1] for name, p in policy.model.named_parameters() if p.dtype != torch.bfloat16}
    # transformers keeps GLM's router in float32, as the published code does.
    assert kept == ({"mlp.gate.weight"} if golden.name == "llada2_moe" else set())


def test_tokenizer_limits_candidates_and_ends_turns(golden: Golden, directory: Path, tmp_path: Path) -> None:
    backbone = find_backbone(str(directory))
    assert isinstance(backbone, PublishedBackbone)
    with_tokenizer(directory, backbone.end_of_turn)
    policy = golden.load(directory)
    turn = policy.tokenizer.convert_tokens_to_ids(backbone.end_of_turn)
    assert turn == 12
    assert policy.vocabulary.end_token_ids == (0, turn)
    assert (policy.vocabulary.pad_token_id, policy.vocabulary.num_candidates) == (0, len(policy.tokenizer))
    again = load_policy(export_policy(policy, tmp_path / "native"))
    assert again.vocabulary == policy.vocabulary
    assert again.tokenizer.get_vocab() == policy.tokenizer.get_vocab()


@torch.no_grad()
def test_every_end_token_of_the_config_counts(golden: Golden, directory: Path, tmp_path: Path) -> None:
    change_config(directory, eos_token_id=[510, 509])
    policy = golden.load(directory)
    assert (policy.vocabulary.pad_token_id, policy.vocabulary.end_token_ids) == (510, (510, 509))
    assert load_policy(export_policy(policy, tmp_path / "native")).vocabulary == policy.vocabulary


def test_tokenizer_that_asks_for_code_loads_without(tmp_path: Path) -> None:
    directory = GOLDEN["dream"].copy(tmp_path / "model")
    tokens = ["<|endoftext|>", *"0123456789+-="]
    (directory / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    settings = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "eos_token": "<|endoftext|>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    change_config(directory, eos_token_id=0)
    assert load_policy(directory).tokenizer("1+2").input_ids == [2, 11, 3]


@pytest.fixture
def hub(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A local hub cache with `owner/model` at its main branch and, without weights, at `early`."""
    repository = tmp_path / "hub" / "models--owner--model"
    for name, commit in (("main", "a" * 40), ("early", "b" * 40)):
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / name).write_text(commit)
        (repository / "snapshots").mkdir(exist_ok=True)
        golden.copy(repository / "snapshots" / commit)
    (repository / "snapshots" / ("b" * 40) / "model.safetensors").unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return "owner/model"


def test_hub_id_loads_from_the_cache(golden: Golden, hub: str) -> None:
    policy = load_policy(hub, **golden.options)
    assert (policy.family, policy.source) == (golden.family, hub)


def test_revision_is_the_one_asked_for(golden: Golden, hub: str) -> None:
    with pytest.raises(UserInputError, match=r"cannot read the weights of .*bbbb"):
        load_policy(hub, **golden.options, revision="early")
    with pytest.raises(UserInputError, match="no model at 'owner/model'"):
        load_policy(hub, **golden.options, revision="absent")


def test_revision_of_a_directory_is_refused(golden: Golden) -> None:
    refused(golden, golden.path, "revision 'main'", revision="main")
