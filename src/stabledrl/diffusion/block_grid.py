"""The block grid of block-causal models: blocks count from each row's first real token, whatever its padding.

Rows are laid out anew so that the blocks of all rows begin at the same columns and all responses begin in the same
block. A row then starts `offset` columns in, a multiple of the block size:

    row with 9 prompt tokens, block 4:   pppp pppp pRRR RRRR ...      offset 0, tail 1
    row with 6 prompt tokens:            .... pppp ppRR RRRR ...      offset 4, tail 2
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class BlockGrid:
    """Where N prompts lie in block-aligned columns.

    Attributes:
        block_size: Tokens per block, B.
        prompt_blocks: Whole blocks before the first one that holds response tokens, F.
        padding: (N,) int64, padding columns of the original prompts.
        offset: (N,) int64, first column of each row, a multiple of B.
        tail: (N,) int64, prompt tokens that share the first response block.
    """

    block_size: int
    prompt_blocks: int
    padding: Tensor
    offset: Tensor
    tail: Tensor

    @classmethod
    def of(cls, prompt_mask: Tensor, block_size: int) -> Self:
        """The grid of prompts (N, P) that are padded on the left; False on padding."""
        lengths = prompt_mask.sum(dim=1)
        whole = lengths // block_size
        prompt_blocks = int(whole.max()) if len(lengths) else 0
        return cls(
            block_size=block_size,
            prompt_blocks=prompt_blocks,
            padding=prompt_mask.shape[1] - lengths,
            offset=(prompt_blocks - whole) * block_size,
            tail=lengths % block_size,
        )

    @property
    def start(self) -> int:
        """First column of the first response block."""
        return self.prompt_blocks * self.block_size

    def response_blocks(self, lengths: Tensor) -> Tensor:
        """(N,) int64, blocks that hold a row's first `lengths` (N,) response tokens."""
        return (self.tail + lengths + self.block_size - 1) // self.block_size

    def lay_out(self, values: Tensor, columns: Tensor, fill: int | bool) -> Tensor:
        """Reads the given columns of the grid.

        Args:
            values: (N, T) in the original columns.
            columns: (W,) int64, columns of the grid.
            fill: What a column outside of a row's values holds.

        Returns:
            (N, W).
        """
        source = columns - self.offset[:, None] + self.padding[:, None]
        outside = (columns < self.offset[:, None]) | (source >= values.shape[1])
        return values.gather(1, source.clamp(0, values.shape[1] - 1)).masked_fill(outside, fill)

    def real(self, columns: Tensor) -> Tensor:
        """(N, W) bool, False at the columns before a row's first token."""
        return columns >= self.offset[:, None]

    def positions(self, columns: Tensor) -> Tensor:
        """(N, W) int64 position ids of the columns; 0 on padding."""
        return (columns - self.offset[:, None]).clamp_min(0)

    def response_index(self, columns: Tensor) -> Tensor:
        """(N, W) int64, response token at each column: negative in the prompt, may lie beyond the response."""
        return columns - self.start - self.tail[:, None]

    def select(self, rows: Tensor) -> "BlockGrid":
        """Keeps the given rows, in the same columns."""
        return BlockGrid(
            block_size=self.block_size,
            prompt_blocks=self.prompt_blocks,
            padding=self.padding[rows],
            offset=self.offset[rows],
            tail=self.tail[rows],
        )


def attend_blocks(query_columns: Tensor, key_columns: Tensor, real_keys: Tensor, block_size: int) -> Tensor:
    """Lets queries attend the real tokens of their own and of earlier blocks, in block-aligned columns.

    Args:
        query_columns: (Q,) int64.
        key_columns: (S,) int64.
        real_keys: (N, S) bool, False on padding.
        block_size: Tokens per block.

    Returns:
        (N, 1, Q, S) bool. A padded query attends itself, so no softmax is empty.
    """
    earlier = key_columns // block_size <= query_columns[:, None] // block_size
    allowed = (earlier & real_keys[:, None]) | (key_columns == query_columns[:, None])
    return allowed[:, None]


def columns_of_blocks(first: int, last: int, block_size: int, device: torch.device) -> Tensor:
    """The columns of blocks `first` up to, not including, `last`."""
    return torch.arange(first * block_size, last * block_size, device=device)
