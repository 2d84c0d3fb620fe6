import json
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from stabledrl.backbones import NewPolicy, Policy, load_policy
from stabledrl.checkpoints import POLICY_KEY, WEIGHTS_PREFIX
from stabledrl.errors import UserInputError
from stabledrl.export import export_checkpoint, export_policy, load_any_policy, write_model_directory

TOKENS = torch.tensor([[2, 3, 1, 4], [5, 0, 1, 1]])


@pytest.fixture(scope="module")
def policy() -> Policy:
    return NewPolicy(
        characters="abcd", hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8, initializer_range=0.3
    ).build()


@pytest.fixture
def checkpoint(policy: Policy, tmp_path: Path) -> Path:
    weights = {WEIGHTS_PREFIX + name: tensor for name, tensor in policy.model.state_dict().items()}
    weights["other.weight"] = torch.zeros(2)  # what else a module holds is not exported
    (tmp_path / "run").mkdir()
    torch.save({"state_dict": weights, POLICY_KEY: policy.describe()}, tmp_path / "run" / "last.ckpt")
    return tmp_path / "run" / "last.ckpt"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def test_checkpoint_and_policy_export_the_same(policy: Policy, checkpoint: Path, tmp_path: Path) -> None:
    first, second = export_checkpoint(checkpoint, tmp_path / "a"), export_policy(policy, tmp_path / "b")
    assert contents(first) == contents(second)
    assert first == tmp_path / "a"
    assert load_file(first / "model.safetensors").keys() == policy.model.state_dict().keys()


@torch.no_grad()
def test_export_gives_the_same_logits_here_and_in_transformers(
    policy: Policy, checkpoint: Path, tmp_path: Path
) -> None:
    exported = export_checkpoint(checkpoint, tmp_path / "model")
    assert torch.equal(load_policy(exported).logits(TOKENS), policy.logits(TOKENS))
    model = AutoModelForCausalLM.from_pretrained(exported)
    torch.testing.assert_close(model(TOKENS).logits, policy.logits(TOKENS), atol=1e-6, rtol=0)
    assert AutoTokenizer.from_pretrained(exported)("abca").input_ids == policy.tokenizer("abca").input_ids


@torch.no_grad()
def test_checkpoint_loads_without_a_directory_left_behind(
    policy: Policy, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    loaded = load_any_policy(checkpoint)
    assert list(scratch.iterdir()) == []
    assert torch.equal(loaded.logits(TOKENS), policy.logits(TOKENS))
    assert loaded.source == str(checkpoint)


@torch.no_grad()
def test_directory_loads_by_the_same_call(policy: Policy, tmp_path: Path) -> None:
    loaded = load_any_policy(export_policy(policy, tmp_path / "model"), torch.float64)
    torch.testing.assert_close(loaded.logits(TOKENS), policy.logits(TOKENS).double(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("path", ["absent.ckpt", "absent", "absent/model"])
def test_absent_path_is_refused(path: str) -> None:
    with pytest.raises(UserInputError, match=r"absent"):
        load_any_policy(path)


def test_tied_weights_are_exported_once_and_come_back(tmp_path: Path, policy: Policy) -> None:
    weights = policy.model.state_dict()
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    files = policy.description_files()
    files["config.json"] = json.dumps({**json.loads(files["config.json"]), "tie_word_embeddings": True})
    loaded = load_policy(write_model_directory(weights, files, tmp_path / "tied", overwrite=False))
    came_back = loaded.model.state_dict()
    assert came_back["lm_head.weight"].data_ptr() == came_back["model.embed_tokens.weight"].data_ptr()
    assert torch.equal(came_back["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_files_are_readable_whatever_the_umask(policy: Policy, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        exported = export_policy(policy, tmp_path / "model")
    finally:
        os.umask(before)
    assert stat.S_IMODE(exported.stat().st_mode) == 0o755
    assert {stat.S_IMODE(file.stat().st_mode) for file in exported.iterdir()} == {0o644}


def test_parents_are_made(policy: Policy, tmp_path: Path) -> None:
    assert (export_policy(policy, tmp_path / "a" / "b" / "model") / "config.json").is_file()


def test_relative_and_trailing_paths_work(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    export_policy(policy, "model/")
    assert (tmp_path / "model" / "config.json").is_file()


def test_existing_output_is_kept(policy: Policy, tmp_path: Path) -> None:
    exported = export_policy(policy, tmp_path / "model")
    before = contents(tmp_path)
    with pytest.raises(UserInputError, match=r"model' exists already"):
        export_policy(policy, exported)
    assert contents(tmp_path) == before


def test_overwriting_replaces_every_file(policy: Policy, tmp_path: Path) -> None:
    exported = export_policy(policy, tmp_path / "model")
    (exported / "stale.txt").write_text("stale")
    (exported / "model.safetensors").write_bytes(b"stale")
    export_policy(policy, exported, overwrite=True)
    assert contents(exported) == contents(export_policy(policy, tmp_path / "fresh"))
    assert {path.name for path in tmp_path.iterdir()} == {"model", "fresh"}


def test_empty_directory_is_overwritten(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert (export_policy(policy, tmp_path / "model", overwrite=True) / "config.json").is_file()


@pytest.mark.parametrize("make", ["directory", "file"])
def test_what_is_no_model_is_not_overwritten(policy: Policy, tmp_path: Path, make: str) -> None:
    target = tmp_path / "thesis"
    if make == "directory":
        target.mkdir()
        (target / "chapter.txt").write_text("years of work")
    else:
        target.write_text("years of work")
    before = contents(tmp_path)
    with pytest.raises(UserInputError, match="no model directory"):
        export_policy(policy, target, overwrite=True)
    assert contents(tmp_path) == before


def test_link_stays_a_link(policy: Policy, tmp_path: Path) -> None:
    export_policy(policy, tmp_path / "model")
    (tmp_path / "model" / "stale.txt").write_text("stale")
    (tmp_path / "link").symlink_to(tmp_path / "model")
    export_policy(policy, tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert not (tmp_path / "model" / "stale.txt").exists()


@pytest.mark.parametrize("name", ["../outside.json", "/outside.json", "sub/inside.json", ".."])
def test_file_name_outside_the_directory_is_refused(policy: Policy, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserInputError, match="outside of the model directory"):
        write_model_directory({}, {name: ""}, tmp_path / "model", overwrite=False)
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_without_the_policys_weights_is_refused(policy: Policy, tmp_path: Path) -> None:
    torch.save({"state_dict": {"other.weight": torch.zeros(2)}, POLICY_KEY: policy.describe()}, tmp_path / "a.ckpt")
    with pytest.raises(UserInputError, match="holds no weights"):
        export_checkpoint(tmp_path / "a.ckpt", tmp_path / "model")
    assert not (tmp_path / "model").exists()
