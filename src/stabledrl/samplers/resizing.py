"""The configured sampler, for another completion length."""

import inspect
from fractions import Fraction
from typing import Any

from stabledrl.errors import UserInputError
from stabledrl.protocols import Sampler


def resize(sampler: Sampler, completion_length: int, steps_per_token: float | None = None) -> Sampler:
    """Copies a sampler with another number of tokens and of denoising steps; all else stays as it is.

    Args:
        sampler: Takes `completion_length` and `denoising_steps`, and keeps its settings under their own names.
        completion_length: Tokens per completion.
        steps_per_token: Denoising steps per token; None keeps the sampler's.

    Returns:
        A new sampler of the same class, its values checked by its constructor.

    Raises:
        UserInputError: The steps come out as no whole number, the values do not fit the block size, or the sampler
            cannot be copied so.
    """
    kind, name = type(sampler), type(sampler).__name__
    settings: dict[str, Any] = {own: getattr(sampler, own, None) for own in inspect.signature(kind).parameters}
    hidden = [own for own in settings if not hasattr(sampler, own)]
    if missing := {"completion_length", "denoising_steps"} - settings.keys():
        raise UserInputError(f"{name} has no setting {' or '.join(sorted(missing))}, which another length needs")
    if hidden:
        raise UserInputError(f"{name} does not keep {', '.join(hidden)} as an attribute, which another length needs")
    if steps_per_token is None:
        steps_per_token = settings["denoising_steps"] / settings["completion_length"]
    steps = completion_length * steps_per_token
    if abs(steps - round(steps)) > 1e-6:
        unit = Fraction(steps_per_token).limit_denominator(1000).denominator
        raise UserInputError(
            f"completion_length {completion_length} x steps_per_token {steps_per_token:g} makes {steps:g} denoising "
            f"steps, no whole number; use a multiple of {unit} tokens"
        )
    settings |= {"completion_length": completion_length, "denoising_steps": round(steps)}
    return kind(**settings)
