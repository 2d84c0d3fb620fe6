"""Laws that draw which completion tokens a model has to predict. Pure functions of the rows' keys.

A draw masks some of a row's L scored tokens and weighs their log-probabilities, so that the mean over draws of the
weighted sums estimates the whole completion's. Each law says how it weighs and whether the mean is the ELBO exactly:

- `uniform`, `stratified`: every draw on its own, or all of them spread over the numbers of masked tokens;
- `complementary`, `antithetic`, `coupled`: pairs of a set of tokens and its complement;
- `quadrature`: a fixed share of masked tokens per draw;
- `block_random`, `block_stratified`: block by block;
- `trace`: the states that a completion was decoded in.

Shape legend as in `stabledrl.types`.
"""

from stabledrl.diffusion.masking.blocks import CONTEXT_MASK_RATE, block_random, block_stratified
from stabledrl.diffusion.masking.pairs import antithetic, complementary, coupled
from stabledrl.diffusion.masking.quadrature import quadrature
from stabledrl.diffusion.masking.trace import trace
from stabledrl.diffusion.masking.uniform import stratified, uniform

__all__ = [
    "CONTEXT_MASK_RATE",
    "antithetic",
    "block_random",
    "block_stratified",
    "complementary",
    "coupled",
    "quadrature",
    "stratified",
    "trace",
    "uniform",
]
