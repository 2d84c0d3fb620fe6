"""Laws over the blocks of a completion."""

import torch
from torch import Tensor

from stabledrl.diffusion.masking.draws import per_draw, weigh_by_share
from stabledrl.randomness import Purpose, uniforms
from stabledrl.types import Corruption, Sequences

CONTEXT_MASK_RATE = 0.15
"""Share of the clean context that `block_random` masks (arXiv 2510.09541)."""


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
    u = per_draw(sequences, Purpose.MASK_BLOCK, draws, step, 1)
    picked = (u * (last_block + 1)[:, None, None]).long()
    inside = (block_of == picked) & scored
    v = per_draw(sequences, Purpose.MASK_COUNT, draws, step, 1)
    count = 1 + (v * inside.sum(dim=2, keepdim=True)).long()
    noise = per_draw(sequences, Purpose.MASK_RANK, draws, step, width)
    in_block = noise.masked_fill(~inside, torch.inf).argsort(dim=2).argsort(dim=2) < count
    context = per_draw(sequences, Purpose.MASK_CONTEXT, draws, step, width) < CONTEXT_MASK_RATE
    masked = (in_block & inside) | ((block_of > picked) & scored) | ((block_of < picked) & scored & context)
    return weigh_by_share(sequences, masked, _prompt_context(sequences, draws, step))


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
    noise = per_draw(sequences, Purpose.MASK_RANK, draws, step, width) + block[:, None]
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
    noise = per_draw(sequences, Purpose.MASK_CONTEXT, draws, step, positions)
    return (noise < CONTEXT_MASK_RATE) & sequences.attention_mask[:, None, :length]
