"""What the records of `stabledrl.types` have in common: slicing, moving, joining and saving their tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self, get_args, get_type_hints

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Base of the records whose tensors all have the rows as first dimension."""

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changed[field.name] = function(value)
            elif isinstance(value, Rows):
                changed[field.name] = value._map(function)
        return replace(self, **changed)

    def select(self, rows: Tensor | slice) -> Self:
        """Keeps the given rows, in the given order."""
        return self._map(lambda tensor: tensor[rows])

    def to(self, device: torch.device | str) -> Self:
        """Moves every tensor to a device."""
        return self._map(lambda tensor: tensor.to(device))

    def detach(self) -> Self:
        """Cuts every tensor from the graph."""
        return self._map(lambda tensor: tensor.detach())

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Joins batches along their rows. Fields that are not tensors are taken from the first one.

        Args:
            parts: At least one batch; an optional field is there in all of them or in none.

        Returns:
            The joined batch.
        """
        joined: dict[str, Any] = {}
        for field in fields(cls):
            values = [getattr(part, field.name) for part in parts]
            first = values[0]
            assert all((value is None) == (first is None) for value in values), f"{field.name} is missing in some parts"
            if isinstance(first, Tensor):
                joined[field.name] = torch.cat(values)
            else:
                joined[field.name] = type(first).cat(values) if isinstance(first, Rows) else first
        return cls(**joined)

    def state_dict(self) -> dict[str, Any]:
        """Nested plain dict of tensors and numbers, as a checkpoint can hold it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _plain(value) for name, value in values.items()}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """Rebuilds a record from its `state_dict`."""
        hints = get_type_hints(cls)
        return cls(**{name: _rebuild(hints[name], value) for name, value in state.items()})


def _plain(value: Any) -> Any:
    if not is_dataclass(value):
        return value
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _rebuild(hint: Any, value: Any) -> Any:
    """Takes a field's value back to the record that its type hint, or a part of it, names."""
    if isinstance(value, Mapping):
        for kind in (hint, *get_args(hint)):
            if isinstance(kind, type) and is_dataclass(kind):
                return kind.from_state_dict(value) if issubclass(kind, Rows) else kind(**value)
    return value
