"""Objectives: policy-gradient losses, one file each.

`importance`, `token_ratio`, `sequence_ratio`, `surrogate` and `kl` hold what they share.
"""

from stabledrl.objectives.coupled_grpo import CoupledGRPO
from stabledrl.objectives.diffu_grpo import DiffuGRPO
from stabledrl.objectives.dmpo import DMPO
from stabledrl.objectives.espo import ESPO
from stabledrl.objectives.gdpo import GDPO
from stabledrl.objectives.grpo import GRPO
from stabledrl.objectives.spg import SPG
from stabledrl.objectives.stabledrl import StableDRL
from stabledrl.objectives.trace_rl import TraceRL
from stabledrl.objectives.wd1 import WD1

__all__ = ["DMPO", "ESPO", "GDPO", "GRPO", "SPG", "WD1", "CoupledGRPO", "DiffuGRPO", "StableDRL", "TraceRL"]
