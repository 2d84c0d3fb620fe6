"""WarmupDecay: the course of the learning rate, step by step."""

import math
from typing import Any

import pytest
import torch
from tests.training import tiny_module, train

from stabledrl.errors import UserInputError
from stabledrl.schedules import WarmupDecay


def course(steps: int, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = WarmupDecay(optimizer, **options)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_linear_decay_reaches_its_share_after_the_last_step_and_stays() -> None:
    assert course(7, total_steps=5, final_share=0.5) == pytest.approx([2.0, 1.8, 1.6, 1.4, 1.2, 1.0, 1.0])


def test_the_warm_up_rises_to_the_peak_and_starts_above_zero() -> None:
    assert course(6, total_steps=8, warmup_steps=4) == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 1.5])


def test_cosine_is_half_way_in_the_middle() -> None:
    rates = course(9, total_steps=8, shape="cosine")
    assert rates[4] == pytest.approx(1.0)
    assert rates[2] == pytest.approx(2 * (1 + math.cos(math.pi / 4)) / 2)
    assert rates[8] == pytest.approx(0.0, abs=1e-12)


def test_constant_stays_at_the_peak() -> None:
    assert course(6, total_steps=4, warmup_steps=2, shape="constant") == pytest.approx([1.0, 2.0, 2.0, 2.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"total_steps": 5, "warmup_steps": 5}, "warmup_steps 5 must be at least 0 and below total_steps 5"),
        ({"total_steps": 5, "warmup_steps": -1}, "warmup_steps -1"),
        ({"total_steps": 0}, "total_steps 0"),
        ({"total_steps": 5, "final_share": 1.5}, "final_share 1.5 must lie between 0 and 1"),
        ({"total_steps": 5, "final_share": float("nan")}, "final_share nan"),
        ({"total_steps": 5, "shape": "step"}, "shape 'step' is not one of linear, cosine, constant"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        course(1, **options)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_in_training_it_is_stepped_once_per_optimizer_step(accumulate: int) -> None:
    module = tiny_module(
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=2.0e-3),
        lr_scheduler=lambda optimizer: WarmupDecay(optimizer, total_steps=5),
    )
    trainer = train(module, steps=3, accumulate=accumulate)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(2.0e-3 * 2 / 5)
