"""Checkpoints of adapters become model directories: merged into the weights they were trained on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.adapters import TOKENS, adapted, adapters, difference
from tests.backbones.golden import GOLDEN, random_tokens
from tests.training import same, tiny_policy, weights
from transformers import AutoModelForCausalLM

from stabledrl.backbones import Policy, load_policy
from stabledrl.checkpoints import POLICY_KEY, WEIGHTS_PREFIX
from stabledrl.errors import UserInputError
from stabledrl.export import Layout, export_checkpoint, export_policy, load_any_policy

pytest.importorskip("peft")


def checkpoint_of(policy: Policy, directory: Path) -> Path:
    """As training leaves it."""
    state = {WEIGHTS_PREFIX + name: weight for name, weight in adapters(policy).items()}
    file = directory / "last.ckpt"
    torch.save({"state_dict": state, POLICY_KEY: {**policy.describe(), "revision": None}}, file)
    return file


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return export_policy(tiny_policy(), tmp_path / "base")


@pytest.fixture
def policy(base: Path) -> Policy:
    return adapted(load_policy(base))


@pytest.fixture
def checkpoint(policy: Policy, tmp_path: Path) -> Path:
    return checkpoint_of(policy, tmp_path)


@pytest.mark.parametrize("layout", ["native", "source"])
@pytest.mark.parametrize("name", GOLDEN)
@torch.no_grad()
def test_every_family_and_layout_has_the_logits_of_the_adapters(name: str, layout: Layout, tmp_path: Path) -> None:
    tokens = random_tokens(2, 16)
    policy = adapted(GOLDEN[name].load())
    exported = export_checkpoint(checkpoint_of(policy, tmp_path), tmp_path / "model", layout=layout)
    loaded = load_policy(exported)
    assert loaded.family == policy.family
    assert difference(loaded(tokens), policy(tokens)) < 1e-5


@torch.no_grad()
def test_the_exported_model_is_one_without_adapters(policy: Policy, checkpoint: Path, tmp_path: Path) -> None:
    exported = export_checkpoint(checkpoint, tmp_path / "model")
    assert load_policy(exported).fingerprint == tiny_policy().fingerprint
    torch.testing.assert_close(
        AutoModelForCausalLM.from_pretrained(exported)(TOKENS).logits, policy(TOKENS), atol=1e-5, rtol=0
    )


@torch.no_grad()
def test_the_command_line_finds_the_model_by_the_checkpoint(policy: Policy, checkpoint: Path) -> None:
    torch.testing.assert_close(load_any_policy(checkpoint)(TOKENS), policy(TOKENS), atol=1e-5, rtol=0)


def test_a_policy_in_memory_is_merged_in_a_copy(policy: Policy, checkpoint: Path, tmp_path: Path) -> None:
    before = weights(policy)
    first, second = export_policy(policy, tmp_path / "a"), export_checkpoint(checkpoint, tmp_path / "b")
    assert same(weights(load_policy(first)), weights(load_policy(second)))
    assert same(weights(policy), before)
    assert policy.adapters


@torch.no_grad()
def test_weights_in_bfloat16_are_merged_as_they_were_trained(tmp_path: Path, base: Path) -> None:
    policy = adapted(load_policy(base, torch.bfloat16))
    exported = export_checkpoint(checkpoint_of(policy, tmp_path), tmp_path / "model")
    assert json.loads((exported / "config.json").read_text())["dtype"] == "float32"
    torch.testing.assert_close(load_policy(exported)(TOKENS), policy.float()(TOKENS), atol=1e-5, rtol=0)


def test_a_model_that_moved_is_named(checkpoint: Path, base: Path, tmp_path: Path) -> None:
    expected = weights(load_policy(export_checkpoint(checkpoint, tmp_path / "before")))
    base.rename(tmp_path / "moved")
    with pytest.raises(UserInputError, match=r"no model at .*base'.*--base names where it is"):
        export_checkpoint(checkpoint, tmp_path / "model")
    exported = export_checkpoint(checkpoint, tmp_path / "model", base=tmp_path / "moved")
    assert same(weights(load_policy(exported)), expected)


def test_adapters_of_a_model_in_memory_need_a_copy_of_it(base: Path, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(adapted(tiny_policy()), tmp_path)
    with pytest.raises(UserInputError, match="made in memory; --base names its copy"):
        export_checkpoint(checkpoint, tmp_path / "model")
    assert export_checkpoint(checkpoint, tmp_path / "model", base=base).is_dir()


@pytest.mark.parametrize(
    ("shape", "told"),
    [({"seed": 1}, r"base_weights: checkpoint '\w{8}', policy '\w{8}'\)"), ({"hidden_size": 32}, "hidden_size: ")],
)
def test_another_model_is_refused(checkpoint: Path, tmp_path: Path, shape: dict[str, Any], told: str) -> None:
    other = export_policy(tiny_policy(**shape), tmp_path / "other")
    with pytest.raises(UserInputError, match=told):
        export_checkpoint(checkpoint, tmp_path / "model", base=other)
    assert not (tmp_path / "model").exists()


def test_a_base_for_whole_weights_is_refused(base: Path, tmp_path: Path) -> None:
    policy = tiny_policy()
    state = {WEIGHTS_PREFIX + name: weight for name, weight in policy.model.state_dict().items()}
    torch.save({"state_dict": state, POLICY_KEY: policy.describe()}, tmp_path / "whole.ckpt")
    with pytest.raises(UserInputError, match=r"base .* given, but checkpoint .*whole.ckpt' holds no adapters"):
        export_checkpoint(tmp_path / "whole.ckpt", tmp_path / "model", base=base)


def test_an_output_that_exists_is_refused_before_a_model_is_loaded(checkpoint: Path, base: Path) -> None:
    output = base.with_name("model")
    output.mkdir()
    shutil.rmtree(base)
    with pytest.raises(UserInputError, match="exists already"):
        export_checkpoint(checkpoint, output)
