"""The corruption process and the attention masks of diffusion language models."""

from stabledrl.diffusion.attention import bidirectional_mask, check_attention, positions_from_mask
from stabledrl.diffusion.masking import (
    CONTEXT_MASK_RATE,
    antithetic,
    block_random,
    block_stratified,
    complementary,
    coupled,
    quadrature,
    stratified,
    trace,
    uniform,
)
from stabledrl.diffusion.staircase import staircase_mask

__all__ = [
    "CONTEXT_MASK_RATE",
    "antithetic",
    "bidirectional_mask",
    "block_random",
    "block_stratified",
    "check_attention",
    "complementary",
    "coupled",
    "positions_from_mask",
    "quadrature",
    "staircase_mask",
    "stratified",
    "trace",
    "uniform",
]
