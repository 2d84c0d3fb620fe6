"""Tensor names of a published layout and of transformers, both ways, and the experts of transformers' classes."""

import re
from collections.abc import Iterator, Mapping

from torch import Tensor


def patterns(names: Mapping[str, str]) -> dict[str, str] | None:
    """The `key_mapping` of transformers' `from_pretrained`, from a table of names."""
    return {_pattern(source): native.replace("{}", r"\1") for native, source in names.items()} or None


def rename(weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Renames tensors by a table from old to new names; `{}` stands for a number. Others keep theirs."""
    table = [(re.compile(_pattern(old)), new.replace("{}", r"\1")) for old, new in names.items()]

    def renamed(name: str) -> str:
        return next((pattern.sub(new, name) for pattern, new in table if pattern.match(name)), name)

    return {renamed(name): tensor for name, tensor in weights.items()}


def _pattern(name: str) -> str:
    return "^" + re.escape(name).replace(r"\{\}", r"(\d+)") + "$"


def split_experts(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Takes apart the stacked experts of transformers' classes: `experts.<n>.{gate,up,down}_proj.weight`.

    Args:
        weights: With `experts.gate_up_proj` (E, 2 I, H) and `experts.down_proj` (E, H, I) for E experts of width I.

    Returns:
        A matrix per expert and projection, in memory of its own; other tensors as they are.
    """
    return dict(pair for name, tensor in weights.items() for pair in _expert_matrices(name, tensor))


def _expert_matrices(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    stem, _, kind = name.rpartition(".")
    if not stem.endswith(".experts"):
        yield name, tensor
        return
    for number, expert in enumerate(tensor):
        parts = zip(("gate", "up"), expert.chunk(2)) if kind == "gate_up_proj" else [("down", expert)]
        for part, matrix in parts:
            yield f"{stem}.{number}.{part}_proj.weight", matrix.clone()
