"""Drawing tokens from logits: inverse CDF with one uniform number a position, so no noise of vocabulary size is made.

The vocabulary is reduced chunk by chunk first and only the chosen chunk is looked at token by token. Against one long
cumulative sum this saves a pass over memory, and the rounding error is that of a chunk.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from stabledrl.types import Vocabulary

_CHUNK = 512
_RESOLUTION = 2.0**50  # integer weights of a row sum to this, well inside what float64 holds exactly


def mask_candidates(logits: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Takes the mask token and unused embedding rows out of the candidates.

    Args:
        logits: (..., V), any floating-point precision.
        vocabulary: Names the mask token and the number of candidates.

    Returns:
        (..., V) float32 copy with -inf at excluded candidates.
    """
    logits = logits.to(torch.float32, copy=True)
    logits[..., vocabulary.mask_token_id] = -torch.inf
    logits[..., vocabulary.num_candidates :] = -torch.inf
    return logits


@torch.no_grad()
def sample_tokens(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draws one token per position from softmax(logits / temperature), the distribution of Gumbel-max sampling.

    Args:
        logits: (..., V); -inf excludes a candidate, which is then never drawn. Computed with in float32.
        uniforms: (...) in [0, 1), one per position. Not used at temperature 0.
        temperature: 0 takes the most likely token, the lowest id among equals.

    Returns:
        Token ids (...) int64 and their probabilities (...) float32 under softmax(logits), that is at temperature 1.
        The probability is NaN where the logits hold NaN, +inf or no candidate.
    """
    logits = logits.float()
    top = logits.amax(dim=-1, keepdim=True)
    weights = (logits - top).exp_()
    sums = _per_chunk(weights, torch.sum)
    total = sums.sum(dim=-1)
    if temperature == 0:
        tokens = _argmax(logits)
    else:
        if temperature != 1:
            # A temperature that float32 would round to 0 is as good as the smallest one it holds.
            divisor = max(temperature, torch.finfo(torch.float32).tiny)
            weights = torch.sub(logits, top, out=weights).div_(divisor).exp_()
            sums = _per_chunk(weights, torch.sum)
        tokens = _inverse_cdf(weights, sums, uniforms)
    chosen = logits.gather(-1, tokens[..., None]) - top
    return tokens, chosen.squeeze(-1).exp() / total


def _per_chunk(values: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
    """Reduces (..., V) to (..., chunks); the last chunk may be shorter."""
    count, rest = divmod(values.shape[-1], _CHUNK)
    parts = [reduce(values[..., : count * _CHUNK].unflatten(-1, (count, _CHUNK)), dim=-1)]
    if rest:
        parts.append(reduce(values[..., count * _CHUNK :], dim=-1, keepdim=True))
    return torch.cat(parts, dim=-1)


def _take_chunk(values: Tensor, chunk: Tensor, fill: float) -> Tensor:
    """Gathers from (..., V) the chunk with the given number (...), filled up beyond the vocabulary's end."""
    size = values.shape[-1]
    index = chunk[..., None] * _CHUNK + torch.arange(min(_CHUNK, size), device=values.device)
    return values.gather(-1, index.clamp_max(size - 1)).masked_fill(index >= size, fill)


def _argmax(logits: Tensor) -> Tensor:
    # Plain argmax over a vocabulary is not vectorised on CPU; the maximum is, and ties end at the lowest id either way.
    chunk = _per_chunk(logits, torch.amax).argmax(dim=-1)
    return chunk * _CHUNK + _take_chunk(logits, chunk, -torch.inf).argmax(dim=-1)


def _inverse_cdf(weights: Tensor, sums: Tensor, uniforms: Tensor) -> Tensor:
    chunk, rest = _invert(sums, uniforms.double())
    offset, _ = _invert(_take_chunk(weights, chunk, 0.0), rest)
    # Beyond the vocabulary only where the weights are NaN; a device must not be asked to read there.
    return (chunk * _CHUNK + offset).clamp_max(weights.shape[-1] - 1)


def _invert(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Finds where cumulative weights pass a share of their total.

    Integer weights, because a parallel scan over floats need not be monotone: a weight of 0 could end up with a sliver
    of probability, and the last cumulative sum could differ from the total.

    Args:
        weights: (..., n) float32, not negative, not all 0.
        uniforms: (...) float64 in [0, 1].

    Returns:
        Index (...) of a positive weight, and (...) float64 in [0, 1], the place within that weight.
    """
    exact = weights.double()
    parts = (exact * (_RESOLUTION / exact.sum(dim=-1, keepdim=True))).long()
    cumulative = parts.cumsum(dim=-1)
    total = cumulative[..., -1]
    place = uniforms * total
    target = torch.minimum(place.long(), total - 1)
    # The first index whose cumulative weight exceeds the target; beyond the last one only where weights are NaN.
    index = torch.searchsorted(cumulative, target[..., None], right=True).clamp_max(weights.shape[-1] - 1)
    part = parts.gather(-1, index)
    lower = cumulative.gather(-1, index) - part
    rest = (place - lower.squeeze(-1)) / part.squeeze(-1)
    return index.squeeze(-1), rest.clamp(0.0, 1.0)
