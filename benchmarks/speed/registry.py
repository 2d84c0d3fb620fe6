"""All comparisons by id, in the order in which they are run."""

from collections.abc import Callable
from typing import Any

from benchmarks.speed.comparison import Comparison
from benchmarks.speed.estimates import e1, s1, s2
from benchmarks.speed.rollouts import r1, r2, r5, r6
from benchmarks.speed.sampling import r3, r4
from benchmarks.speed.updates import u1

BENCHMARKS: dict[str, Callable[..., list[Comparison]]] = {
    "R1": r1,
    "R2": r2,
    "R3": r3,
    "R4": r4,
    "R5": r5,
    "R6": r6,
    "E1": e1,
    "S1": s1,
    "S2": s2,
    "U1": u1,
}

SMALL: dict[str, dict[str, Any]] = {
    "R1": {"rows": 3, "prompt": 8, "completion": 16, "steps": 8},
    "R2": {"rows": 3, "prompt": 8, "completion": 16, "steps": 8},
    "R3": {"vocabulary_size": 2000, "completion": 16, "block_size": 8},
    "R4": {"rows": 3, "prompt": 4, "completion": 32, "block_size": 8},
    "R5": {"rows": 2, "prompt": 32, "completion": 64, "steps_per_block": (2, 4)},
    "R6": {"rows": 3, "prompt": 8, "completion": 16, "steps": 8},
    "E1": {"rows": 2, "prompt": 8, "completion": 16, "vocabulary_size": 3000},
    "S1": {"prompt": 32, "completion": 64, "hidden": 32},
    "S2": {"prompt": 32, "completion": 64, "hidden": 32},
    "U1": {"group_size": 2, "prompt": 8, "completion": 16, "steps": 16},
}
"""Settings with which a comparison's check takes a moment. What they measure says nothing."""
