"""The corruption process and the attention masks of diffusion language models."""

from stabledrl.diffusion.attention import bidirectional_mask, positions_from_mask
from stabledrl.diffusion.masking import CONTEXT_MASK_RATE, block_random, complementary, stratified, uniform

__all__ = [
    "CONTEXT_MASK_RATE",
    "bidirectional_mask",
    "block_random",
    "complementary",
    "positions_from_mask",
    "stratified",
    "uniform",
]
