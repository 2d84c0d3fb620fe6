"""The law with a fixed share of masked tokens per draw."""

import numpy as np
import torch
from torch import Tensor

from stabledrl.diffusion.masking.draws import per_draw, weigh
from stabledrl.randomness import Purpose
from stabledrl.types import Corruption, Sequences


def quadrature(sequences: Sequences, draws: int, step: int) -> Corruption:
    """Draw q masks each token with probability t_q, the K points of Gauss-Legendre quadrature on (0, 1).

    The ELBO is the integral over t of f(t) = 1 / t * E[sum of the masked tokens' log-probabilities]. For L tokens f is
    a polynomial of degree L - 1, for which K points are exact up to L = 2 K: two points, t = .2113 and .7887, up to
    four tokens. Beyond that the expectation is the quadrature's value, not the ELBO: not unbiased.

    Draws without a masked token say nothing, so draws are conditioned on having one. A masked token weighs
    w_q / t_q * (1 - (1 - t_q)^L) times K (the estimate is a mean): the expectation stays the same.

    Source: GDPO, arXiv 2510.08554, the semi-deterministic Monte-Carlo estimate.

    Args:
        sequences: N rows.
        draws: K.
        step: Counter that sets apart repeated uses of the same rows.

    Returns:
        The corruption.
    """
    points, point_weights = (part.to(sequences.row_keys.device) for part in gauss_legendre(draws))
    lengths, width = sequences.lengths[:, None].double(), sequences.completion_mask.shape[1]
    kept = torch.log1p(-points)  # log of the probability that a token stays
    some = -torch.expm1(lengths * kept)  # (N, K), probability of a masked token
    # Where the first masked token lies follows a geometric law cut off at L; all tokens after it are independent.
    u = per_draw(sequences, Purpose.MASK_COUNT, draws, step, 1)[:, :, 0]
    first = torch.minimum((torch.log1p(-u * some) / kept).floor(), lengths - 1)[:, :, None]
    place = torch.arange(width, device=points.device)
    noise = per_draw(sequences, Purpose.MASK_RANK, draws, step, width)
    masked = (place == first) | ((place > first) & (noise < points[:, None]))
    masked = masked & sequences.completion_mask[:, None]
    return weigh(sequences, masked, draws * point_weights / points * some)


def gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Points and weights of Gauss-Legendre quadrature on (0, 1), (count,) float64 each; the weights sum to 1."""
    points, weights = np.polynomial.legendre.leggauss(count)
    return torch.from_numpy((points + 1) / 2), torch.from_numpy(weights / 2)
