"""From prompts to completions: one file per way of decoding."""

from stabledrl.samplers.semi_autoregressive import SemiAutoregressiveSampler

__all__ = ["SemiAutoregressiveSampler"]
