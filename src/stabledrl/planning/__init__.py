"""How much memory a run takes, told before any weight is read."""

from stabledrl.planning.loads import Load, RowPass, measure_load
from stabledrl.planning.memory import Memory, Setting, plan_memory
from stabledrl.planning.optimizer_state import state_bytes

__all__ = ["Load", "Memory", "RowPass", "Setting", "measure_load", "plan_memory", "state_bytes"]
