"""The masking laws by name, as `MonteCarloElbo` is configured with them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stabledrl.diffusion import masking
from stabledrl.errors import UserInputError
from stabledrl.types import Corruption, Sequences

Masking = Literal[
    "block_random", "uniform", "stratified", "complementary", "antithetic", "quadrature", "coupled", "trace"
]


@dataclass(frozen=True, kw_only=True)
class MaskLaw:
    """A law of `stabledrl.diffusion.masking` and what holds for it.

    Attributes:
        draw: Called with (sequences, draws, step), and with `block_size` by keyword where the law is over blocks.
        unbiased: Whether the expectation is the ELBO exactly. Tested by enumeration.
        over_blocks: Whether it depends on the size of a block.
        paired: Draws come in pairs.
        first: Draws that come before the pairs.
        traced: Whether the masks follow from the steps of the sampler, so that none is drawn.
    """

    draw: Callable[..., Corruption]
    unbiased: bool = False
    over_blocks: bool = False
    paired: bool = False
    first: int = 0
    traced: bool = False

    def __call__(self, sequences: Sequences, draws: int, step: int, *, block_size: int) -> Corruption:
        """Draws K = `draws` corruptions per row; `step` sets apart repeated uses of the same rows."""
        if self.over_blocks:
            return self.draw(sequences, draws, step, block_size=block_size)
        return self.draw(sequences, draws, step)


MASK_LAWS: dict[Masking, MaskLaw] = {
    "block_random": MaskLaw(draw=masking.block_random, over_blocks=True),
    "uniform": MaskLaw(draw=masking.uniform, unbiased=True),
    "stratified": MaskLaw(draw=masking.stratified, unbiased=True),
    "complementary": MaskLaw(draw=masking.complementary, paired=True),
    "antithetic": MaskLaw(draw=masking.antithetic, paired=True, unbiased=True),
    "quadrature": MaskLaw(draw=masking.quadrature),
    "coupled": MaskLaw(draw=masking.coupled, paired=True, first=1),
    "trace": MaskLaw(draw=masking.trace, traced=True),
}
"""A new law is a function in `stabledrl.diffusion.masking`, a name above and a line here."""


def check_mask_law(name: str, draws: int) -> None:
    """Refuses a law that does not exist or cannot make that many draws.

    Raises:
        UserInputError: Says what would be valid.
    """
    law = next((law for known, law in MASK_LAWS.items() if known == name), None)
    if law is None:
        raise UserInputError(f"masking {name!r} is unknown; use one of {', '.join(MASK_LAWS)}")
    if law.paired and (draws % 2 != law.first or draws < 2):
        valid = "odd and at least 3" if law.first else "even"
        reason = ", after one that masks everything" if law.first else ""
        raise UserInputError(f"draws {draws} must be {valid} for {name} masks, which come in pairs{reason}")
