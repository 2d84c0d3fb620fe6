"""Bytes of an optimizer's state per parameter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from stabledrl.errors import UserInputError
from stabledrl.planning import state_bytes

FLOAT, HALF = torch.float32, torch.bfloat16


class PagedAdamW8bit(Optimizer):
    """As one that runs on a GPU only."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    def step(self, closure: Any = None) -> None:
        raise AssertionError("there is no GPU")


@pytest.mark.parametrize(
    ("make", "dtype", "expected"),
    [
        (AdamW, FLOAT, 8),
        (AdamW, HALF, 4),
        (lambda own: Adam(own, amsgrad=True), FLOAT, 12),
        (SGD, FLOAT, 0),
        (lambda own: SGD(own, momentum=0.9), FLOAT, 4),
        (torch.optim.RMSprop, FLOAT, 4),
        (PagedAdamW8bit, FLOAT, 2),
    ],
)
def test_states_are_counted(make: Callable[..., Optimizer], dtype: torch.dtype, expected: float) -> None:
    assert state_bytes(make, dtype) == expected


def test_factored_states_are_a_row_and_a_column() -> None:
    assert state_bytes(torch.optim.Adafactor, FLOAT) == pytest.approx(2 * 64 * 4 / 64**2)


def test_a_rate_that_bfloat16_weights_lose_is_refused() -> None:
    with pytest.raises(UserInputError, match="learning rate 1e-06 is lost on bfloat16 weights"):
        state_bytes(lambda own: AdamW(own, lr=1e-6), HALF)
