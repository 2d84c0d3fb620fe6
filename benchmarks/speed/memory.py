"""The peak of live tensor memory, counted from the operations themselves: the same on every machine and in every run.

What a kernel allocates for itself and frees before it returns is not seen.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of every storage that an operation makes, until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        options = options or {}
        # What was there before, a weight or an input, is not counted.
        given = {id(tensor.untyped_storage()) for tensor in _tensors((arguments, options))}
        found = function(*arguments, **options)
        for tensor in _tensors(found):
            storage = tensor.untyped_storage()
            if id(storage) not in given and storage not in self._known:
                self._count(storage)
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self._known.add(storage)
        weakref.finalize(storage, self._free, size)
        self.live += size
        self.peak = max(self.peak, self.live)

    def _free(self, size: int) -> None:
        self.live -= size


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor)]


def peak_bytes(run: Callable[[], Any]) -> int:
    """Most bytes of tensors, made while `run` is called, that were alive at once."""
    with LiveBytes() as counted:
        run()
    return counted.peak
