"""Tiny checkpoints in the published layouts, and the logits recorded from their families' own code."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stabledrl.backbones import NewPolicy, Policy, load_policy
from stabledrl.errors import UserInputError

CASES = Path(__file__).parents[1] / "cases" / "backbones"
END, MASK = 510, 511


@dataclass(frozen=True)
class Golden:
    """A family's recorded model; `options` stand in for what its tiny config does not say."""

    name: str
    family: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return CASES / self.name

    def load(self, path: Path | None = None, **changed: Any) -> Policy:
        return load_policy(path or self.path, **{**self.options, **changed})

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        return config

    def weights(self) -> dict[str, Tensor]:
        return load_file(self.path / "model.safetensors")

    def cases(self) -> dict[str, dict[str, Tensor]]:
        found: dict[str, dict[str, Tensor]] = {}
        for key, tensor in load_file(self.path / "cases.safetensors").items():
            case, name = key.split(".")
            found.setdefault(case, {})[name] = tensor
        return found

    def copy(self, directory: Path) -> Path:
        """A copy that can be damaged."""
        directory.mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copyfile(self.path / file, directory / file)
        return directory


GOLDEN = {
    golden.name: golden
    for golden in (
        Golden("llada", "llada"),
        Golden("dream", "dream"),
        Golden("sdar", "sdar"),
        Golden("sdar_moe", "sdar_moe", {"mask_token_id": MASK}),
        Golden("llada_moe", "llada_moe", {"mask_token_id": MASK}),
        Golden("llada2_moe", "llada2", {"mask_token_id": MASK, "block_size": 8}),
    )
}
BLOCK_CAUSAL = ("sdar", "sdar_moe", "llada2_moe")


def random_tokens(rows: int, length: int) -> Tensor:
    """Ids that are neither mask nor end."""
    return torch.randint(0, END, (rows, length))


def other(tokens: Tensor, position: int) -> Tensor:
    """The same rows with another token at one position."""
    changed = tokens.clone()
    changed[:, position] = (changed[:, position] + 1) % END
    return changed


def change_config(directory: Path, **values: Any) -> None:
    """Changes fields; None takes one out."""
    file = directory / "config.json"
    changed = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({name: value for name, value in changed.items() if value is not None}))


def change_weights(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    file = directory / "model.safetensors"
    weights = dict(load_file(file))
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def refused(golden: Golden, directory: Path, match: str, **changed: Any) -> None:
    with pytest.raises(UserInputError, match=match) as caught:
        golden.load(directory, **changed)
    assert "\n" not in str(caught.value)


def with_tokenizer(directory: Path, turn: str) -> None:
    made = NewPolicy(characters="0123456789").build().tokenizer
    made.add_special_tokens({"additional_special_tokens": [turn]})
    made.save_pretrained(directory)
    change_config(directory, eos_token_id=made.eos_token_id)
