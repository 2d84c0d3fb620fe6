"""Backbones: diffusion language models on transformers' own classes."""

from stabledrl.backbones.loading import load_policy
from stabledrl.backbones.native import NewPolicy
from stabledrl.backbones.policy import Policy

__all__ = ["NewPolicy", "Policy", "load_policy"]
