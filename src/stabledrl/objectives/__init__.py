"""Objectives: one file each, over shared maths."""

from stabledrl.objectives.grpo import GRPO
from stabledrl.objectives.stabledrl import StableDRL

__all__ = ["GRPO", "StableDRL"]
