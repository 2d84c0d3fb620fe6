"""Objectives: policy-gradient losses, one file each; `importance`, `surrogate` and `kl` hold what they share."""

from stabledrl.objectives.grpo import GRPO
from stabledrl.objectives.stabledrl import StableDRL

__all__ = ["GRPO", "StableDRL"]
