"""Log-probabilities of given tokens from hidden states, without holding the logits of the whole vocabulary at once."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from typing_extensions import override

CHUNK_ON_CPU, CHUNK_ON_DEVICE = 2**20, 2**24
"""Logits held at once: what stays in a CPU's cache, and what keeps a GPU busy in 64 MB."""


def token_log_probs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *, chunk: int | None = None
) -> Tensor:
    """Computes log softmax(hidden @ weight.T + bias) at the targets, over one part of the vocabulary at a time.

    Matrix products have the precision of the arguments, or autocast's; everything else is float32. The backward pass
    computes the logits again. A part of the vocabulary has its weights' gradient from one matrix product, so that low
    precision adds no rounding between parts; only the gradient of `hidden` is a sum over parts, and kept in float32.
    `torch.nn.functional.linear_cross_entropy` is as fast, but rounds its losses to the precision of the arguments.

    Args:
        hidden: (M, D), any floating-point precision.
        weight: (V, D), of the same precision.
        bias: (V,) or None.
        targets: (M,) int64 in [0, V).
        chunk: Logits to hold at once; None chooses by the device.

    Returns:
        (M,) float32 (float64 for float64 arguments), differentiable once.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if chunk is None:
        chunk = CHUNK_ON_CPU if hidden.device.type == "cpu" else CHUNK_ON_DEVICE
    rows = max(1, chunk // max(1, len(targets)))
    found: Tensor = _TokenLogProbs.apply(hidden, weight, bias, targets, rows)
    return found


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: int) -> Tensor:
        normalizers, chosen = [], None
        for start in range(0, len(weight), rows):
            logits = _logits(hidden, weight, bias, slice(start, start + rows))
            place, inside = _place(targets, start, logits.shape[1])
            own = logits.gather(1, place).squeeze(1)
            chosen = own if chosen is None else torch.where(inside, own, chosen)
            normalizers.append(logits.logsumexp(dim=1))
        assert chosen is not None, "an empty vocabulary"
        normalizer = torch.stack(normalizers).logsumexp(dim=0)
        ctx.save_for_backward(hidden, weight, bias, targets, normalizer)
        ctx.rows = rows
        return chosen - normalizer

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normalizer = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_hidden = torch.zeros_like(hidden, dtype=normalizer.dtype) if needs_hidden else None
        of_weight = torch.empty_like(weight) if needs_weight else None
        of_bias = torch.empty_like(bias) if needs_bias else None
        for start in range(0, len(weight), ctx.rows):
            part = slice(start, start + ctx.rows)
            # gradient * (1 at the target - probability), in the memory of the logits.
            share = _logits(hidden, weight, bias, part).sub_(normalizer[:, None]).exp_().mul_(-gradient[:, None])
            place, inside = _place(targets, start, share.shape[1])
            share.scatter_add_(1, place, (gradient * inside)[:, None])
            if of_bias is not None:
                of_bias[part] = share.sum(dim=0)
            share = share.to(weight.dtype)
            if of_weight is not None:
                torch.mm(share.T, hidden, out=of_weight[part])
            if of_hidden is not None:
                _add_product(of_hidden, share, weight[part])
        return None if of_hidden is None else of_hidden.to(hidden.dtype), of_weight, of_bias, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, part: slice) -> Tensor:
    """(M, v) logits of a part of the vocabulary in at least float32, in memory of their own."""
    logits = linear(hidden, weight[part], None if bias is None else bias[part])
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Adds left @ right to the total, of at least float32, without a rounding to the factors' precision in between."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif total.is_cuda:
        total += torch.mm(left, right, out_dtype=total.dtype)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))


def _place(targets: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """(M, 1) column of each target in a part of the vocabulary, and (M,) whether it lies there."""
    place = targets - start
    return place.clamp(0, size - 1)[:, None], (place >= 0) & (place < size)


def chosen_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """(M,) float32 log softmax at the targets, for logits (M, V) that are there anyway."""
    return logits.float().log_softmax(dim=-1).gather(1, targets[:, None]).squeeze(1)
