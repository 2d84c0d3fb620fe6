"""Attention masks of diffusion language models.

They are 4D boolean masks (True = attend), the form that transformers' sdpa attention passes through unchanged.
"""

from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.protocols import LikelihoodEstimator, Sampler


def check_attention(block_size: int | None, *parts: Sampler | LikelihoodEstimator) -> None:
    """Refuses samplers and estimators that are made for another attention than the policy's.

    Args:
        block_size: Of a block-causal policy; None for full attention.
        parts: What works on the policy.

    Raises:
        UserInputError: Names the part, both attentions, and what fits.
    """
    for part in parts:
        if part.attention_block_size == block_size:
            continue
        name, own = type(part).__name__, part.attention_block_size
        if block_size is None:
            raise UserInputError(
                f"{name} has block_size {own}, but the policy attends to everything, not in blocks; "
                f"use SemiAutoregressiveSampler and MonteCarloElbo"
            )
        if own is None:
            raise UserInputError(
                f"{name} is made for full attention, but the policy attends in blocks of {block_size} tokens; "
                f"use BlockDiffusionSampler and StaircaseElbo with block_size {block_size}"
            )
        raise UserInputError(
            f"{name} has block_size {own}, but the policy attends in blocks of {block_size} tokens; "
            f"use block_size {block_size}"
        )


def bidirectional_mask(attention_mask: Tensor) -> Tensor:
    """Lets every query attend every real token.

    Args:
        attention_mask: (N, T) bool, True = real token.

    Returns:
        (N, 1, T, T) bool, a view. Rows of padded queries attend real tokens too, so no softmax is empty.
    """
    length = attention_mask.shape[1]
    return attention_mask[:, None, None, :].expand(-1, 1, length, -1)


def positions_from_mask(attention_mask: Tensor) -> Tensor:
    """Numbers the real tokens of each row from 0, so that a row's positions do not depend on its padding.

    Args:
        attention_mask: (N, T) bool, True = real token.

    Returns:
        (N, T) int64; 0 on padding.
    """
    return (attention_mask.long().cumsum(dim=1) - 1).clamp_min(0)


def block_causal_mask(attention_mask: Tensor, position_ids: Tensor, block_size: int) -> Tensor:
    """Lets every query attend the real tokens of its own and of earlier blocks. Blocks count from position 0.

    Args:
        attention_mask: (N, T) bool, True = real token.
        position_ids: (N, T) int64.
        block_size: Tokens per block.

    Returns:
        (N, 1, T, T) bool. Rows of padded queries attend the first block's real tokens, so no softmax is empty.
    """
    block = position_ids // block_size
    return ((block[:, None, :] <= block[:, :, None]) & attention_mask[:, None, :])[:, None]
