"""Attention masks of diffusion language models, as 4D boolean masks (True = attend), the form that transformers' sdpa
attention passes through unchanged."""

from torch import Tensor


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
