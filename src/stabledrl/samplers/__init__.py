"""From prompts to completions: one file per way of decoding."""

from stabledrl.samplers.block_diffusion import BlockDiffusionSampler
from stabledrl.samplers.semi_autoregressive import SemiAutoregressiveSampler

__all__ = ["BlockDiffusionSampler", "SemiAutoregressiveSampler"]
