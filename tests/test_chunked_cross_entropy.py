"""Log-probabilities by parts of the vocabulary are those of the whole vocabulary, and so are their gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from stabledrl.chunked_cross_entropy import chosen_log_probs, token_log_probs

ROWS, WIDTH, VOCABULARY = 37, 16, 301
CHUNKS = [1, 10 * ROWS, 100 * ROWS, VOCABULARY * ROWS, None]
"""One id a part, several parts with a rest, exactly one part, and by default."""

Parts = tuple[Tensor, Tensor, Tensor | None, Tensor]


def problem(dtype: torch.dtype = torch.float32, *, bias: bool = False, scale: float = 1.0) -> Parts:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator).to(dtype)

    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    targets[:2] = torch.tensor([0, VOCABULARY - 1])
    return draw(ROWS, WIDTH), draw(VOCABULARY, WIDTH), draw(VOCABULARY) if bias else None, targets


def plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    return chosen_log_probs(linear(hidden, weight, bias), targets)


def value_and_gradients(function: Callable[..., Tensor], parts: Parts) -> list[Tensor]:
    *given, targets = parts
    leaves = [None if part is None else part.clone().requires_grad_() for part in given]
    found = function(*leaves, targets)
    found.backward(torch.linspace(-1, 1, len(targets), dtype=found.dtype))
    gradients = [leaf.grad for leaf in leaves if leaf is not None]
    assert all(gradient is not None for gradient in gradients)
    return [found.detach(), *(gradient for gradient in gradients if gradient is not None)]


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_those_of_the_whole_vocabulary(chunk: int | None, bias: bool) -> None:
    parts = problem(bias=bias)
    found = value_and_gradients(lambda *given: token_log_probs(*given, chunk=chunk), parts)
    expected = value_and_gradients(plain, parts)
    assert len(found) == 3 + bias
    assert expected[0].std() > 1
    torch.testing.assert_close(found[0], expected[0], atol=1e-6, rtol=1e-6)
    for own, other in zip(found[1:], expected[1:]):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_bf16_weights_give_float32_values_as_exact_as_from_whole_logits(chunk: int | None) -> None:
    parts = problem(torch.bfloat16)
    found = value_and_gradients(lambda *given: token_log_probs(*given, chunk=chunk), parts)
    expected = value_and_gradients(plain, parts)
    assert found[0].dtype == torch.float32
    assert [own.dtype for own in found[1:]] == [torch.bfloat16] * 2
    torch.testing.assert_close(found[0], expected[0], atol=1e-6, rtol=1e-6)
    # Gradients are rounded to bf16 once, wherever a sum in between was kept: one unit in the last place.
    for own, other in zip(found[1:], expected[1:]):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=2.0**-7)


def test_gradient_of_bf16_hidden_states_does_not_lose_digits_with_the_number_of_parts() -> None:
    hidden, weight, _, targets = problem(torch.bfloat16)
    exact = value_and_gradients(plain, (hidden.double(), weight.double(), None, targets))[1]

    def error(chunk: int) -> float:
        found = value_and_gradients(
            lambda *given: token_log_probs(*given, chunk=chunk), (hidden, weight, None, targets)
        )
        return float((found[1].double() - exact).norm() / exact.norm())

    assert error(1) < 1.2 * error(VOCABULARY * ROWS) + 1e-4


def test_gradcheck_in_float64() -> None:
    hidden, weight, bias, targets = problem(torch.float64, bias=True)
    small = (hidden[:5, :4], weight[:23, :4], bias[:23] if bias is not None else None)
    leaves = [part.clone().requires_grad_() for part in small if part is not None]
    assert torch.autograd.gradcheck(lambda *given: token_log_probs(*given, targets[:5] % 23, chunk=5 * 7), leaves)


@pytest.mark.parametrize("trained", ["hidden", "weight"])
def test_only_what_is_asked_for_gets_a_gradient(trained: str) -> None:
    hidden, weight, _, targets = problem()
    expected = dict(zip(("hidden", "weight"), value_and_gradients(plain, (hidden, weight, None, targets))[1:]))
    leaves = {"hidden": hidden, "weight": weight}
    leaves[trained].requires_grad_()
    token_log_probs(hidden, weight, None, targets, chunk=500).backward(torch.linspace(-1, 1, ROWS))
    torch.testing.assert_close(leaves[trained].grad, expected[trained], atol=1e-5, rtol=1e-5)
    assert all(leaf.grad is None for name, leaf in leaves.items() if name != trained)


def test_autocast_decides_the_precision_of_the_products_as_for_a_linear_layer() -> None:
    parts = problem()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = value_and_gradients(lambda *given: token_log_probs(*given, chunk=1000), parts)
        expected = value_and_gradients(plain, parts)
    assert [own.dtype for own in found] == [torch.float32] * 3
    torch.testing.assert_close(found[0], expected[0], atol=1e-6, rtol=1e-6)
    for own, other in zip(found[1:], expected[1:]):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=2.0**-7)
    assert (found[0] - plain(*parts)).abs().max() > 1e-3


def test_large_logits_neither_overflow_nor_lose_the_target() -> None:
    parts = problem(scale=30.0)
    found = value_and_gradients(lambda *given: token_log_probs(*given, chunk=1000), parts)
    expected = value_and_gradients(plain, parts)
    assert expected[0].min() < -1000
    for own, other in zip(found, expected):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-5)


def test_no_targets_give_no_values_and_zero_gradients() -> None:
    hidden, weight, _, targets = problem()
    hidden, weight = hidden[:0].requires_grad_(), weight.requires_grad_()
    found = token_log_probs(hidden, weight, None, targets[:0])
    assert found.shape == (0,)
    found.sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_hidden_states_that_are_not_finite_are_not_hidden(value: float) -> None:
    hidden, weight, _, targets = problem()
    hidden[3, 0] = value
    found = token_log_probs(hidden, weight, None, targets, chunk=1000)
    assert found[3].isnan()
    assert found.isfinite().sum() == ROWS - 1


class _Largest(TorchDispatchMode):
    """Elements of the largest tensor that an operation made."""

    size = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):  # type: ignore[no-untyped-def]
        found = function(*arguments, **(options or {}))
        if isinstance(found, Tensor):
            self.size = max(self.size, found.numel())
        return found


def test_no_more_logits_are_held_than_a_chunk() -> None:
    parts = problem()
    with _Largest() as whole:
        value_and_gradients(plain, parts)
    with _Largest() as chunked:
        value_and_gradients(lambda *given: token_log_probs(*given, chunk=1000), parts)
    assert whole.size == ROWS * VOCABULARY
    assert chunked.size == VOCABULARY * WIDTH  # the gradient of the weights


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_gives_the_same_in_either_precision(dtype: torch.dtype) -> None:
    cpu = problem(dtype)
    expected = value_and_gradients(plain, cpu)
    on_gpu: Parts = (cpu[0].cuda(), cpu[1].cuda(), None, cpu[3].cuda())
    found = value_and_gradients(lambda *given: token_log_probs(*given, chunk=1000), on_gpu)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for own, other in zip(found, expected):
        torch.testing.assert_close(own.cpu(), other, atol=tolerance, rtol=tolerance)
