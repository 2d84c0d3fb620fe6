"""Laws that draw which completion tokens a model has to predict. Pure functions of the rows' keys.

A draw masks k of a row's L scored tokens; the weight L / k of each makes the weighted sum of the masked
log-probabilities an estimate of the whole completion's. Shape legend as in `stabledrl.types`.
"""

import torch
from torch import Tensor

from stabledrl.randomness import Purpose, uniforms
from stabledrl.types import Corruption, Sequences

CONTEXT_MASK_RATE = 0.15
"""Share of the clean context that `block_random` masks (arXiv 2510.09541)."""


def uniform(sequences: Sequences, draws: int, step: int) -> Corruption:
    """Each draw on its own: k ~ U{1..L}, then k of the L tokens. A draw's weighted sum is an unbiased ELBO.

    Args:
        sequences: N rows.
        draws: K.
        step: Counter that sets apart repeated uses of the same rows.

    Returns:
        The corruption.
    """
    u = _per_draw(sequences, Purpose.MASK_COUNT, draws, step, 1)[:, :, 0]
    count = 1 + (u * sequences.lengths[:, None]).long()
    return _from_counts(sequences, count, _ranks(sequences, draws, step))


def stratified(sequences: Sequences, draws: int, step: int) -> Corruption:
    """As `uniform`, with the K counts spread evenly over 1..L: k_j = 1 + floor(((u + j / K) mod 1) L). Unbiased too.

    Args:
        sequences: N rows.
        draws: K.
        step: Counter that sets apart repeated uses of the same rows.

    Returns:
        The corruption.
    """
    u = uniforms(sequences.row_keys, Purpose.MASK_COUNT, step, 1)
    offset = torch.arange(draws, dtype=u.dtype, device=u.device) / draws
    count = 1 + (((u + offset) % 1) * sequences.lengths[:, None]).long()
    return _from_counts(sequences, count, _ranks(sequences, draws, step))


def complementary(sequences: Sequences, draws: int, step: int) -> Corruption:
    """Pairs of a set of k ~ U{1..L-1} tokens and its complement, so that every token is scored once a pair.

    A proxy for the ELBO, not an unbiased one: no draw masks everything. A row of one token has it masked in both draws.

    Args:
        sequences: N rows.
        draws: K, even.
        step: Counter that sets apart repeated uses of the same rows.

    Returns:
        The corruption.
    """
    assert draws % 2 == 0
    lengths = sequences.lengths[:, None]
    u = _per_draw(sequences, Purpose.MASK_COUNT, draws // 2, step, 1)[:, :, 0]
    count = 1 + (u * (lengths - 1)).long()
    ranks = _ranks(sequences, draws // 2, step)
    first = ranks < count[:, :, None]
    second = (~first | (lengths == 1)[:, :, None]) & sequences.completion_mask[:, None]
    return _with_weights(sequences, torch.stack([first, second], dim=2).flatten(1, 2))


def block_random(sequences: Sequences, draws: int, step: int, block_size: int) -> Corruption:
    """Masks as decoding would meet them (arXiv 2510.09541): part of one random block, and all that comes after it.

    Prompt and earlier blocks stay clean but for a share of 0.15. In the picked block k ~ U{1..its scored tokens} are
    masked. The draw's weight is L / (scored masked tokens): a proxy for the ELBO, not an unbiased one.

    Args:
        sequences: N rows.
        draws: K.
        step: Counter that sets apart repeated uses of the same rows.
        block_size: Tokens per block.

    Returns:
        The corruption.
    """
    scored = sequences.completion_mask[:, None]
    width = scored.shape[2]
    block_of = torch.arange(width, device=scored.device) // block_size
    last_block = (sequences.lengths - 1) // block_size
    u = _per_draw(sequences, Purpose.MASK_BLOCK, draws, step, 1)
    picked = (u * (last_block + 1)[:, None, None]).long()
    inside = (block_of == picked) & scored
    v = _per_draw(sequences, Purpose.MASK_COUNT, draws, step, 1)
    count = 1 + (v * inside.sum(dim=2, keepdim=True)).long()
    noise = _per_draw(sequences, Purpose.MASK_RANK, draws, step, width)
    in_block = noise.masked_fill(~inside, torch.inf).argsort(dim=2).argsort(dim=2) < count
    context = _per_draw(sequences, Purpose.MASK_CONTEXT, draws, step, width) < CONTEXT_MASK_RATE
    masked = (in_block & inside) | ((block_of > picked) & scored) | ((block_of < picked) & scored & context)
    return _with_weights(sequences, masked, _prompt_context(sequences, draws, step))


def block_stratified(sequences: Sequences, draws: int, step: int, block_size: int) -> Corruption:
    """Every block on its own (arXiv 2503.09573): k ~ U{1..n} of its n scored tokens, each with weight n / k.

    Unbiased for the block-diffusion ELBO. Blocks count from the row's first real token; prompt tokens that share the
    first response block stay clean. The counts come from one cyclic sequence of strata over draws and blocks:
    k = 1 + floor(((u + j / K + b / (K blocks)) mod 1) n) for draw j and block b.

    Args:
        sequences: N rows.
        draws: K.
        step: Counter that sets apart repeated uses of the same rows.
        block_size: Tokens per block.

    Returns:
        The corruption.
    """
    width, lengths = sequences.completion_mask.shape[1], sequences.lengths[:, None]
    tail = sequences.attention_mask[:, : sequences.prompt_length].sum(dim=1, keepdim=True) % block_size
    block = (torch.arange(width, device=tail.device) + tail) // block_size
    start = (block * block_size - tail).clamp_min(0)
    size = torch.minimum((block + 1) * block_size - tail, lengths) - start
    u = uniforms(sequences.row_keys, Purpose.MASK_COUNT, step, 1)[:, :, None]
    blocks = (lengths + tail + block_size - 1) // block_size
    draw = torch.arange(draws, dtype=u.dtype, device=u.device)[None, :, None]
    stratum = (u + draw / draws + (block / (draws * blocks).to(u.dtype))[:, None]) % 1
    count = 1 + (stratum * size[:, None]).long()
    # Ranked within blocks, because the block's number outweighs the noise.
    noise = _per_draw(sequences, Purpose.MASK_RANK, draws, step, width) + block[:, None]
    noise = noise.masked_fill(~sequences.completion_mask[:, None], torch.inf)
    rank = noise.argsort(dim=2).argsort(dim=2) - start[:, None]
    masked = (rank < count) & sequences.completion_mask[:, None]
    weight = torch.where(masked, size[:, None].float() / count.float(), 0.0)
    prompt = masked.new_zeros(*masked.shape[:2], sequences.prompt_length)
    return Corruption(masked=torch.cat([prompt, masked], dim=2), weight=weight)


def _prompt_context(sequences: Sequences, draws: int, step: int) -> Tensor:
    """(N, K, P) bool, the masked share of the prompt; keyed from its end, so that padding changes nothing."""
    length = sequences.prompt_length
    positions = -1 - torch.arange(length, device=sequences.token_ids.device).flip(0)
    noise = _per_draw(sequences, Purpose.MASK_CONTEXT, draws, step, positions)
    return (noise < CONTEXT_MASK_RATE) & sequences.attention_mask[:, None, :length]


def _per_draw(sequences: Sequences, purpose: Purpose, draws: int, step: int, positions: Tensor | int) -> Tensor:
    """(N, K, M) uniforms; every draw has a step of its own."""
    parts = [uniforms(sequences.row_keys, purpose, step * draws + draw, positions) for draw in range(draws)]
    return torch.stack(parts, dim=1)


def _ranks(sequences: Sequences, draws: int, step: int) -> Tensor:
    """(N, K, C) int64, a random order of each row's scored tokens; those that are not scored come last."""
    noise = _per_draw(sequences, Purpose.MASK_RANK, draws, step, sequences.completion_mask.shape[1])
    return noise.masked_fill(~sequences.completion_mask[:, None], torch.inf).argsort(dim=2).argsort(dim=2)


def _from_counts(sequences: Sequences, count: Tensor, ranks: Tensor) -> Corruption:
    return _with_weights(sequences, (ranks < count[:, :, None]) & sequences.completion_mask[:, None])


def _with_weights(sequences: Sequences, masked: Tensor, prompt: Tensor | None = None) -> Corruption:
    if prompt is None:
        prompt = masked.new_zeros(*masked.shape[:2], sequences.prompt_length)
    factor = sequences.lengths[:, None].float() / masked.sum(dim=2).float()
    weight = torch.where(masked, factor[:, :, None], 0.0)
    return Corruption(masked=torch.cat([prompt, masked], dim=2), weight=weight)
