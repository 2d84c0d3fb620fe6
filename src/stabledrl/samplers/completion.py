"""What every way of decoding shares: sizes that fit each other, end tokens, and the record of the result."""

import math
from functools import reduce

import torch
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.types import Completions, Vocabulary


def check_sizes(completion_length: int, block_size: int, denoising_steps: int) -> None:
    """Refuses sizes that are no positive whole numbers or do not divide each other.

    Raises:
        UserInputError: Names the value and the nearest ones that would fit.
    """
    for name, value in (
        ("completion_length", completion_length),
        ("block_size", block_size),
        ("denoising_steps", denoising_steps),
    ):
        if not isinstance(value, int) or value < 1:
            raise UserInputError(f"{name} {value!r} is not valid; use a positive whole number")
    blocks, rest = divmod(completion_length, block_size)
    if rest:
        valid = _multiples_near(completion_length, block_size)
        raise UserInputError(
            f"completion_length {completion_length} is not a multiple of block_size {block_size}; use {valid}"
        )
    if denoising_steps > completion_length:
        raise UserInputError(
            f"denoising_steps {denoising_steps} is more than one step per token; use a multiple of the {blocks} blocks "
            f"up to completion_length {completion_length}"
        )
    if denoising_steps % blocks:
        raise UserInputError(
            f"denoising_steps {denoising_steps} is not a multiple of the {blocks} blocks (completion_length "
            f"{completion_length} / block_size {block_size}); use {_multiples_near(denoising_steps, blocks)}"
        )


def check_temperature(temperature: float) -> None:
    """Refuses a temperature that is negative or not finite.

    Raises:
        UserInputError: Names the value.
    """
    if not 0 <= temperature < math.inf:
        raise UserInputError(f"temperature {temperature} is not valid; use 0 (greedy) or a positive finite number")


def _multiples_near(value: int, unit: int) -> str:
    below = value // unit * unit
    return f"{below} or {below + unit}" if below else f"{unit}"


def is_end(token_ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Where a token is one that ends a completion, same shape."""
    # Comparisons with plain numbers: a tensor of ids would have to be copied to the device first.
    none = torch.zeros_like(token_ids, dtype=torch.bool)
    return reduce(torch.logical_or, [token_ids == end for end in vocabulary.end_token_ids], none)


def check_finite(broken: Tensor) -> None:
    """Ends a run in which logits were not finite.

    Args:
        broken: (N,) bool, the rows that met such logits.

    Raises:
        FloatingPointError: Names the rows.
    """
    if broken.any():
        rows = broken.nonzero().squeeze(1).tolist()
        raise FloatingPointError(f"the policy returned logits that are not finite while sampling rows {rows}")


def until_first_end(token_ids: Tensor, step_map: Tensor, vocabulary: Vocabulary) -> Completions:
    """Takes back, from (N, C) tokens and steps, what follows each row's first end token."""
    ends = is_end(token_ids, vocabulary)
    after = (ends.cumsum(dim=1) - ends.long()) > 0
    return Completions(
        token_ids=token_ids.masked_fill(after, vocabulary.mask_token_id),
        completion_mask=~after,
        step_map=step_map.masked_fill(after, -1),
    )
