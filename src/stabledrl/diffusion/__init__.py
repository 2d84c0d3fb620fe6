"""The corruption process and the attention masks of diffusion language models."""

from stabledrl.diffusion.attention import bidirectional_mask, check_attention, positions_from_mask
from stabledrl.diffusion.masking import (
    CONTEXT_MASK_RATE,
    block_random,
    block_stratified,
    complementary,
    stratified,
    uniform,
)
from stabledrl.diffusion.staircase import staircase_mask

__all__ = [
    "CONTEXT_MASK_RATE",
    "bidirectional_mask",
    "block_random",
    "block_stratified",
    "check_attention",
    "complementary",
    "positions_from_mask",
    "staircase_mask",
    "stratified",
    "uniform",
]
