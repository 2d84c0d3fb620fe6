"""Learning-rate schedules, stepped once per optimizer step."""

import math
from typing import Literal, get_args

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from stabledrl.errors import UserInputError

Shape = Literal["linear", "cosine", "constant"]


class WarmupDecay(LambdaLR):
    """Rises linearly over the warm-up, then falls towards a share of the peak, reached after the last step.

    Args:
        optimizer: The optimizer.
        total_steps: Optimizer steps of the run.
        warmup_steps: Steps until the peak; 0 starts at it.
        final_share: Learning rate after `total_steps`, as a share of the peak.
        shape: Course of the decay.

    Raises:
        UserInputError: Steps, share or shape out of range.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        warmup_steps: int = 0,
        final_share: float = 0.0,
        shape: Shape = "linear",
    ) -> None:
        if not 0 <= warmup_steps < total_steps:
            raise UserInputError(f"warmup_steps {warmup_steps} must be at least 0 and below total_steps {total_steps}")
        if not 0 <= final_share <= 1:
            raise UserInputError(f"final_share {final_share} must lie between 0 and 1")
        if shape not in get_args(Shape):
            raise UserInputError(f"shape {shape!r} is not one of {', '.join(get_args(Shape))}")
        super().__init__(optimizer, lambda step: _factor(step, total_steps, warmup_steps, final_share, shape))


def _factor(step: int, total_steps: int, warmup_steps: int, final_share: float, shape: Shape) -> float:
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if shape == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    left = 1 - progress if shape == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return final_share + (1 - final_share) * left
