"""How a policy is read: the settings that are handed on to `load_policy`, and what is refused before weights are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.backbones.golden import GOLDEN
from tests.training import tiny_module, tiny_policy

from stabledrl.backbones import NewPolicy, loading
from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.policy_module import PolicyModule
from stabledrl.sft import SupervisedModule

SDAR = GOLDEN["sdar"].path
COMMIT = "c" * 40


def plain(policy: Any, **options: Any) -> PolicyModule:
    return PolicyModule(policy, torch.optim.AdamW, None, **options)


def supervised(policy: Any, **options: Any) -> PolicyModule:
    return SupervisedModule(policy, MonteCarloElbo(), **options)


def diffusion(policy: Any, **options: Any) -> PolicyModule:
    return tiny_module(policy=policy, **options)


MODULES = pytest.mark.parametrize("make", [plain, supervised, diffusion])


@MODULES
def test_block_size_and_mask_token_reach_the_model(make: Callable[..., PolicyModule]) -> None:
    module = make(str(SDAR), block_size=2, mask_token_id=7)
    module.load()
    assert (module.loaded_policy.block_size, module.vocabulary.mask_token_id) == (2, 7)


@MODULES
def test_a_revision_comes_from_the_cache_of_the_hub(
    make: Callable[..., PolicyModule], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "models--owner--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "early").write_text(COMMIT)
    (repository / "snapshots").mkdir()
    GOLDEN["llada"].copy(repository / "snapshots" / COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))
    module = make("owner/model", revision="early")
    module.load()
    assert (module.loaded_policy.family, module.loaded_policy.source) == ("llada", "owner/model")
    with pytest.raises(UserInputError, match="no model at 'owner/model'"):
        make("owner/model").load()


@MODULES
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"block_size": 0}, "block_size 0 must be at least 1"),
        ({"mask_token_id": -1}, "mask_token_id -1 must be at least 0"),
        ({"revision": "main"}, "revision 'main' given, but .* is a directory"),
    ],
)
def test_what_no_model_can_be_read_with_is_refused_at_construction(
    make: Callable[..., PolicyModule], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserInputError, match=told):
        make(str(SDAR), **options)


@pytest.mark.parametrize("policy", [tiny_policy(), NewPolicy()], ids=["in memory", "new"])
@pytest.mark.parametrize("options", [{"block_size": 4}, {"mask_token_id": 0}, {"revision": "main"}])
def test_a_policy_that_is_not_read_takes_no_settings_of_reading(policy: Any, options: dict[str, Any]) -> None:
    with pytest.raises(UserInputError, match=f"{next(iter(options))} .* not read from a directory or hub"):
        plain(policy, **options)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("llada", {"block_size": 4}, "full-attention model"),
        ("sdar", {"mask_token_id": 10**6}, "outside its vocabulary of 512"),
        ("sdar", {"mask_token_id": 510}, "is an end token"),
    ],
)
def test_what_this_model_cannot_be_read_with_is_refused_before_its_weights(
    name: str, options: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("weights were read"))
    monkeypatch.setattr("stabledrl.backbones.translation.load_model", loading.load_model)
    with pytest.raises(UserInputError, match=told):
        plain(str(GOLDEN[name].path), **options).load()
