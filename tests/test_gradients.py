"""The gradient's norm, and learning rates that bfloat16 weights cannot take."""

import math

import pytest
import torch
from torch import nn

from stabledrl.errors import UserInputError
from stabledrl.gradients import MIN_BFLOAT16_LR, check_update_precision, gradient_norm


def with_gradients(*gradients: torch.Tensor | None) -> nn.Module:
    module = nn.Module()
    for index, gradient in enumerate(gradients):
        parameter = nn.Parameter(torch.zeros(3) if gradient is None else torch.zeros_like(gradient))
        parameter.grad = gradient
        module.register_parameter(f"p{index}", parameter)
    return module


def test_the_norm_is_over_all_gradients() -> None:
    module = with_gradients(torch.tensor([3.0]), None, torch.tensor([[0.0, 4.0]]))
    assert gradient_norm(module).item() == pytest.approx(5.0)


def test_without_gradients_it_is_zero() -> None:
    assert gradient_norm(with_gradients(None)).item() == 0.0
    assert gradient_norm(with_gradients()).item() == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_entry_that_is_not_finite_shows(value: float) -> None:
    norm = gradient_norm(with_gradients(torch.ones(1000), torch.tensor([1.0, value, 1.0])))
    assert not norm.isfinite()


def test_half_precision_is_summed_in_float32() -> None:
    norm = gradient_norm(with_gradients(torch.full((70_000,), 1.0, dtype=torch.bfloat16)))
    assert norm.dtype == torch.float32
    assert norm.item() == pytest.approx(70_000**0.5, rel=1e-5)
    assert gradient_norm(with_gradients(torch.full((4,), 60_000.0, dtype=torch.float16))).item() == 120_000.0


def adamw(lr: float | torch.Tensor, *dtypes: torch.dtype) -> torch.optim.AdamW:
    return torch.optim.AdamW([nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in dtypes], lr=lr)


def test_small_rates_on_bfloat16_are_refused_and_others_not() -> None:
    for dtypes in ((torch.bfloat16,), (torch.float32, torch.bfloat16)):
        with pytest.raises(UserInputError, match=r"learning rate 1e-06 .* use at least 1e-05"):
            check_update_precision(adamw(1e-6, *dtypes))
        check_update_precision(adamw(MIN_BFLOAT16_LR, *dtypes))
    check_update_precision(adamw(1e-6, torch.float32))


def test_every_parameter_group_is_looked_at() -> None:
    optimizer = adamw(1e-3, torch.bfloat16)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))], "lr": 1e-7})
    with pytest.raises(UserInputError, match="1e-07"):
        check_update_precision(optimizer)


def test_stochastic_rounding_is_allowed() -> None:
    optimizer = adamw(1e-6, torch.bfloat16)
    optimizer.bf16_stochastic_round = True  # type: ignore[attr-defined]
    check_update_precision(optimizer)


def test_such_steps_are_indeed_lost() -> None:
    torch.manual_seed(0)
    start = torch.randn(1000).to(torch.bfloat16)
    parameter = nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([parameter], lr=1e-6, weight_decay=0.0)
    for _ in range(50):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    assert (parameter != start).float().mean() < 0.05
