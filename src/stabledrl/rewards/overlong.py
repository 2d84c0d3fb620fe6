"""A penalty on completions that come close to their largest length (DAPO, arXiv 2503.14476, equation 13)."""

from typing import Any

from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.grade import Reward


class OverlongPenalty(Reward):
    """0 up to `max_length - buffer` tokens, then falling linearly to -1 at `max_length`; -1 beyond.

    The length counts the end token. Listed after the grader, with a weight: a run has it only if asked for.

    Args:
        max_length: Tokens at which the penalty is whole; the sampler's completion_length, as a rule.
        buffer: Tokens over which it grows; 0 punishes only what is longer than `max_length`.

    Raises:
        UserInputError: A value is out of range.
    """

    def __init__(self, max_length: int, buffer: int) -> None:
        if max_length < 1:
            raise UserInputError(f"max_length {max_length} must be at least 1")
        if not 0 <= buffer <= max_length:
            raise UserInputError(f"buffer {buffer} must lie between 0 and max_length {max_length}")
        self.max_length = max_length
        self.buffer = buffer

    @override
    def __call__(self, prompts: list[Any], completions: list[Any], **columns: list[Any]) -> list[float | None]:
        return [self._penalty(len(ids)) for ids in columns["completion_ids"]]

    def _penalty(self, length: int) -> float:
        beyond = length - (self.max_length - self.buffer)
        return 0.0 if beyond <= 0 else -min(1.0, beyond / self.buffer) if self.buffer else -1.0
