"""Staircase attention: one pass over a clean and K noised copies of a response replaces one pass per block.

Source: StableDRL (arXiv 2603.06743); the rule is that of BD3-LM's vectorised training (arXiv 2503.09573), here with one
clean copy that all noised ones share.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

FLEX_TILE = 128
"""Columns of a tile of flex_attention, which leaves out the tiles that nothing attends."""


def staircase_rule(block: Tensor, stream: Tensor, real: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Lets clean tokens attend clean ones of their own and earlier blocks, noised tokens attend clean ones of earlier
    blocks and their own copy's of the same block.

        allow(q, k) = real(k) and [ C -> C, b(k) <= b(q)  or  N -> C, b(k) < b(q)  or  N_i -> N_i, b(k) = b(q) ]
                      or  q = k

    Clean tokens never attend noised ones, nor one noised copy another: no noised token sees the clean tokens of its own
    or a later block. A padded query attends itself, so no softmax is empty.

    Args:
        block: (S,) int64, block of each column, b.
        stream: (S,) int64, 0 for the clean copy, i for noised copy i.
        real: (N, S) bool, False on padding.

    Returns:
        A function of int64 indices (row, head, query, key) that broadcast; its bool result tells whether query may
        attend key. Of the form that flex_attention calls a mask_mod.
    """

    def allow(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        earlier_clean = (stream[key] == 0) & (block[key] < block[query])
        same = (stream[key] == stream[query]) & (block[key] == block[query])
        return (real[row, key] & (earlier_clean | same)) | (query == key)

    return allow


def staircase_mask(block: Tensor, stream: Tensor, real: Tensor) -> Tensor:
    """Writes `staircase_rule` out, for sdpa. Arguments are the rule's.

    Returns:
        (N, 1, S, S) bool, True = attend.
    """
    row, column = torch.arange(len(real), device=block.device), torch.arange(len(block), device=block.device)
    allow = staircase_rule(block, stream, real)
    return allow(row[:, None, None, None], row.new_zeros(()), column[:, None], column)


def staircase_block_mask(block: Tensor, stream: Tensor, real: Tensor) -> BlockMask:
    """Hands `staircase_rule` to flex_attention, which skips the tiles that no query attends. Arguments are the rule's.

    While it is made, it takes as much memory as the written-out mask, N S S bytes a few times over; then next to none.

    Returns:
        Of shape (N, 1, S, S).
    """
    rows, columns = real.shape
    allow = staircase_rule(block, stream, real)
    return create_block_mask(allow, rows, None, columns, columns, device=block.device, BLOCK_SIZE=FLEX_TILE)
