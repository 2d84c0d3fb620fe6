"""Which masked positions a denoising step decides, and how many."""

from functools import cache

import torch
from torch import Tensor


def transfer_schedule(block_size: int, steps: int) -> list[int]:
    """Spreads the positions of a block evenly over its denoising steps, as LLaDA does (arXiv 2502.09992).

    Args:
        block_size: Positions to decide.
        steps: Denoising steps; more steps than positions leave some steps without any.

    Returns:
        Number of positions decided at each step. They add up to `block_size`; a remainder goes to the first steps.
    """
    base, remainder = divmod(block_size, steps)
    return [base + (step < remainder) for step in range(steps)]


def transfer(confidence: Tensor, masked: Tensor | None, count: int) -> Tensor:
    """Picks the masked positions of each row that are decided now: those with the highest confidence.

    Args:
        confidence: (N, M) float, not negative; compared in float32. Read at masked positions only.
        masked: (N, M) bool, True where a position is still undecided; None where all are.
        count: Positions to decide per row, from 1 to M. A row with fewer masked positions has all of them decided.

    Returns:
        (N, M) bool. Of equal confidences the lower position comes first.
    """
    size = confidence.shape[1]
    # Floats that are not negative are ordered as their bits are. With the position appended no two keys are equal, so
    # the answer does not depend on how a device's top-k treats ties. A position that is not masked has key 0.
    keys = torch.add(_places(size, confidence.device), confidence.float().view(torch.int32), alpha=size)
    if masked is not None:
        keys.mul_(masked)
    chosen = torch.zeros_like(confidence, dtype=torch.bool)
    chosen.scatter_(1, keys.topk(count, dim=1, sorted=False).indices, True)
    return chosen if masked is None else chosen.logical_and_(masked)


@cache
def _places(size: int, device: torch.device) -> Tensor:
    """(size,) int64 from size down to 1; kept, because making it is a tenth of a selection."""
    return torch.arange(size, 0, -1, device=device)
