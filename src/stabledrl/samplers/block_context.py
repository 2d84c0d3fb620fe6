"""What a block is denoised against: the clean tokens before it, kept as a cache or read again at every step."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from stabledrl.diffusion.block_grid import BlockGrid, attend_blocks, columns_of_blocks
from stabledrl.errors import UserInputError
from stabledrl.protocols import Denoiser


class BlockContext(ABC):
    """The clean blocks of n rows, in block-aligned columns.

    Args:
        forward: The policy.
        grid: Where the rows lie.
        prompt_ids: (N, P) int64.
        mask_token_id: Fills what is not decided.
    """

    def __init__(self, forward: Denoiser, grid: BlockGrid, prompt_ids: Tensor, mask_token_id: int) -> None:
        self.forward, self.grid, self.mask_token_id = forward, grid, mask_token_id
        self._prompt_ids = prompt_ids
        self._block = grid.prompt_blocks
        """Number, within the row, of the block that is being decoded."""

    def columns(self, number: int) -> Tensor:
        """(B,) int64, the grid's columns of the response's block with the given number."""
        first = self.grid.prompt_blocks + number
        return columns_of_blocks(first, first + 1, self.grid.block_size, self._prompt_ids.device)

    def prompt_tokens(self, columns: Tensor) -> Tensor:
        """(n, W) int64, the prompt's tokens at the given columns, mask tokens elsewhere."""
        return self.grid.lay_out(self._prompt_ids, columns, self.mask_token_id)

    @abstractmethod
    def logits(self, token_ids: Tensor, keep: Tensor) -> Tensor:
        """(M, V) logits at the True positions of `keep` (n, B), for the current block's tokens (n, B)."""
        ...

    def advance(self, token_ids: Tensor, rows: Tensor) -> None:
        """Takes the current block as clean, (n, B), and goes on to the next one with the given rows."""
        self._prompt_ids, self.grid = self._prompt_ids[rows], self.grid.select(rows)
        self._block += 1


class PlainContext(BlockContext):
    """Reads the whole sequence at every step; the reference for the cache, and the way of policies without one."""

    def __init__(self, forward: Denoiser, grid: BlockGrid, prompt_ids: Tensor, mask_token_id: int) -> None:
        super().__init__(forward, grid, prompt_ids, mask_token_id)
        self._clean = self.prompt_tokens(columns_of_blocks(0, self._block, grid.block_size, prompt_ids.device))

    def logits(self, token_ids: Tensor, keep: Tensor) -> Tensor:
        """(M, V) logits, see `BlockContext.logits`; the policy makes its own block-causal mask."""
        whole = torch.cat([self._clean, token_ids], dim=1)
        columns = torch.arange(whole.shape[1], device=whole.device)
        everywhere = torch.cat([torch.zeros_like(self._clean, dtype=torch.bool), keep], dim=1)
        return self.forward(whole, self.grid.real(columns), keep=everywhere)

    def advance(self, token_ids: Tensor, rows: Tensor) -> None:
        """Appends the block, see `BlockContext.advance`."""
        super().advance(token_ids, rows)
        self._clean = torch.cat([self._clean, token_ids], dim=1)[rows]


class CachedContext(BlockContext):
    """Keeps keys and values of the clean blocks. Exact, because a block-causal model's do not depend on later blocks.

    Raises:
        UserInputError: The policy has no cache.
    """

    def __init__(self, forward: Denoiser, grid: BlockGrid, prompt_ids: Tensor, mask_token_id: int) -> None:
        super().__init__(forward, grid, prompt_ids, mask_token_id)
        self._cache = new_cache(forward)
        self._uncommitted: Tensor | None = None
        if self._block:
            self._prefill()

    def _prefill(self) -> None:
        """Reads the whole prompt blocks, once for equal rows side by side."""
        columns = columns_of_blocks(0, self._block, self.grid.block_size, self._prompt_ids.device)
        # Padding tells apart prompts that differ by tokens equal to the padding's id.
        known = torch.cat([self._prompt_ids, self.grid.padding[:, None]], dim=1)
        _, group = known.unique_consecutive(dim=0, return_inverse=True)
        first = torch.cat([group.new_zeros(1), (group.diff().nonzero() + 1).squeeze(1)])
        grid = self.grid.select(first)
        self.forward(
            grid.lay_out(self._prompt_ids[first], columns, self.mask_token_id),
            attend_blocks(columns, columns, grid.real(columns), grid.block_size),
            # The cache is what is wanted; one position, because some number of logits has to be computed.
            keep=columns.new_zeros(len(first), 1),
            position_ids=grid.positions(columns),
            cache=self._cache,
        )
        self._cache.batch_select_indices(group)

    def logits(self, token_ids: Tensor, keep: Tensor) -> Tensor:
        """(M, V) logits, see `BlockContext.logits`; a block that has become clean is committed in the same pass."""
        size = self.grid.block_size
        if self._uncommitted is not None:
            token_ids = torch.cat([self._uncommitted, token_ids], dim=1)
            keep = torch.cat([torch.zeros_like(self._uncommitted, dtype=torch.bool), keep], dim=1)
        end = (self._block + 1) * size
        keys = torch.arange(end, device=token_ids.device)
        queries = keys[end - token_ids.shape[1] :]
        found = self.forward(
            token_ids,
            attend_blocks(queries, keys, self.grid.real(keys), size),
            keep=keep,
            position_ids=self.grid.positions(queries),
            cache=self._cache,
        )
        self._cache.crop(-size)
        self._uncommitted = None
        return found

    def advance(self, token_ids: Tensor, rows: Tensor) -> None:
        """Remembers the block for the next pass and drops rows, see `BlockContext.advance`."""
        if len(rows) < len(token_ids):
            self._cache.batch_select_indices(rows)
        super().advance(token_ids, rows)
        self._uncommitted = token_ids[rows]


def new_cache(forward: Denoiser) -> Any:
    """An empty cache of the policy, also where the policy is wrapped (`module`) for several processes.

    Raises:
        UserInputError: Neither has one.
    """
    holder: Any = forward
    while not hasattr(holder, "new_cache"):
        if not hasattr(holder, "module"):
            raise UserInputError(f"{type(forward).__name__} has no key-value cache (new_cache); set use_cache: false")
        holder = holder.module
    return holder.new_cache()
