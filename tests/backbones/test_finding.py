import json
from pathlib import Path
from typing import Any

import pytest
import torch

from stabledrl.backbones import NewPolicy, Policy, load_policy
from stabledrl.backbones.loading import available_backbones, find_backbone
from stabledrl.backbones.native import Native
from stabledrl.protocols import Backbone


@pytest.fixture(scope="module")
def users_backbones() -> tuple[type[Backbone], type[Backbone]]:
    class Abstract(Backbone):
        """Without `load`, so not a family."""

        family = "abstract"

        def matches(self, config: dict[str, Any]) -> bool:
            raise AssertionError("an abstract class is no family")

    class Mine(Abstract):
        family = "mine"

        def matches(self, config: dict[str, Any]) -> bool:
            return config.get("model_type") == "mine"

        def load(self, path: str, *, dtype: torch.dtype, mask_token_id: int | None, block_size: int | None) -> Any:
            made = NewPolicy(characters="ab", hidden_size=8, num_heads=2, num_layers=1).build()
            return Policy(made.model, made.tokenizer, made.vocabulary, family=f"mine-{block_size}", source=path)

    class Refined(Native):
        family = "refined"

        def matches(self, config: dict[str, Any]) -> bool:
            return super().matches(config) and config.get("refined") is True

    return Mine, Refined


def test_users_backbone_loads(tmp_path: Path, users_backbones: tuple[type[Backbone], ...]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mine"}')
    loaded = load_policy(tmp_path, block_size=8)
    assert loaded.family == "mine-8"
    assert not loaded.training


def test_backbone_derived_from_another_is_asked_first(
    directory: Path, users_backbones: tuple[type[Backbone], ...]
) -> None:
    assert type(find_backbone(str(directory))) is Native
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "refined": True}))
    assert type(find_backbone(str(directory))) is users_backbones[1]


def test_every_backbone_is_listed_once(users_backbones: tuple[type[Backbone], ...]) -> None:
    found = [type(backbone) for backbone in available_backbones()]
    assert {Native, *users_backbones} <= set(found)
    assert len(found) == len(set(found))


def test_newer_backbone_is_asked_before_an_older_one(
    directory: Path, users_backbones: tuple[type[Backbone], ...]
) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "mine"}))
    mine = users_backbones[0]
    assert Native().matches({**config, "model_type": "mine"})
    assert type(find_backbone(str(directory))) is mine
