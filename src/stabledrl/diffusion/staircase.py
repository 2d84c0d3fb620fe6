"""Staircase attention: one pass over a clean and K noised copies of a response replaces one pass per block.

Source: StableDRL (arXiv 2603.06743); the rule is that of BD3-LM's vectorised training (arXiv 2503.09573), here with one
clean copy that all noised ones share.
"""

from torch import Tensor


def staircase_mask(block: Tensor, stream: Tensor, real: Tensor) -> Tensor:
    """Lets clean tokens attend clean ones of their own and earlier blocks, noised tokens attend clean ones of earlier
    blocks and their own copy's of the same block.

        allow(q, k) = real(k) and [ C -> C, b(k) <= b(q)  or  N -> C, b(k) < b(q)  or  N_i -> N_i, b(k) = b(q) ]

    Clean tokens never attend noised ones, nor one noised copy another: no noised token sees the clean tokens of its own
    or a later block.

    Args:
        block: (S,) int64, block of each column, b.
        stream: (S,) int64, 0 for the clean copy, i for noised copy i.
        real: (N, S) bool, False on padding.

    Returns:
        (N, 1, S, S) bool, True = attend. A padded query attends itself too, so no softmax is empty.
    """
    clean_key, clean_query = stream == 0, stream[:, None] == 0
    earlier, same = block < block[:, None], block == block[:, None]
    own_copy = same & (stream == stream[:, None])
    allowed = (clean_key & earlier) | (clean_key & clean_query & same) | own_copy
    padded_self = own_copy.new_zeros(own_copy.shape).fill_diagonal_(True) & ~real[:, None]
    return ((allowed & real[:, None]) | padded_self)[:, None]
