"""What an optimizer remembers of a parameter."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stabledrl.gradients import check_update_precision

_EIGHT_BIT = "8bit"
_SIDE = 64


def state_bytes(make: Callable[[Iterable[Tensor]], Optimizer], dtype: torch.dtype) -> float:
    """Bytes of an optimizer's state per parameter: those it has after a step on a small matrix.

    AdamW has two numbers in the parameter's precision, SGD none, or one with momentum. Those with 8bit in their name
    may run on a GPU only, and keep matrices as small as this one in float32: two bytes are assumed.

    Args:
        make: Makes the optimizer.
        dtype: Precision of the parameters.

    Returns:
        Bytes per parameter.

    Raises:
        UserInputError: The learning rate is lost on weights of that precision.
    """
    matrix = nn.Parameter(torch.zeros(_SIDE, _SIDE, dtype=dtype))
    optimizer = make([matrix])
    check_update_precision(optimizer)
    if _EIGHT_BIT in type(optimizer).__name__.lower().replace("_", "").replace("-", ""):
        return 2.0
    matrix.grad = torch.ones_like(matrix)
    optimizer.step()
    # Counters of steps are single numbers, and one per parameter tensor.
    sizes = [value.nbytes for value in optimizer.state[matrix].values() if isinstance(value, Tensor) and value.ndim]
    return sum(sizes) / matrix.numel()
