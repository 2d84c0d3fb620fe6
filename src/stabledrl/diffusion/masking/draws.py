"""What the laws share: random numbers per draw, and corruptions from sets of masked tokens."""

import torch
from torch import Tensor

from stabledrl.randomness import Purpose, uniforms
from stabledrl.types import Corruption, Sequences


def per_draw(sequences: Sequences, purpose: Purpose, draws: int, step: int, positions: Tensor | int) -> Tensor:
    """(N, K, M) uniforms; every draw has a step of its own."""
    parts = [uniforms(sequences.row_keys, purpose, step * draws + draw, positions) for draw in range(draws)]
    return torch.stack(parts, dim=1)


def token_ranks(sequences: Sequences, draws: int, step: int) -> Tensor:
    """(N, K, C) int64, a random order of each row's scored tokens; those that are not scored come last."""
    noise = per_draw(sequences, Purpose.MASK_RANK, draws, step, sequences.completion_mask.shape[1])
    return noise.masked_fill(~sequences.completion_mask[:, None], torch.inf).argsort(dim=2).argsort(dim=2)


def strata(sequences: Sequences, draws: int, step: int) -> Tensor:
    """(N, K) float64: a row's K numbers, each uniform on [0, 1) and 1 / K apart: (u + j / K) mod 1."""
    u = uniforms(sequences.row_keys, Purpose.MASK_COUNT, step, 1)
    return (u + torch.arange(draws, dtype=u.dtype, device=u.device) / draws) % 1


def weigh(sequences: Sequences, masked: Tensor, factor: Tensor, prompt: Tensor | None = None) -> Corruption:
    """Makes the corruption.

    Args:
        sequences: N rows.
        masked: (N, K, C) bool, masked completion tokens, scored ones only.
        factor: (N, K), the weight of each masked token of a draw.
        prompt: (N, K, P) bool, masked prompt tokens; None for a clean prompt.

    Returns:
        The corruption.
    """
    if prompt is None:
        prompt = masked.new_zeros(*masked.shape[:2], sequences.prompt_length)
    weight = torch.where(masked, factor[:, :, None].float(), 0.0)
    return Corruption(masked=torch.cat([prompt, masked], dim=2), weight=weight)


def weigh_by_share(sequences: Sequences, masked: Tensor, prompt: Tensor | None = None) -> Corruption:
    """As `weigh`, by L / k for k masked tokens, of which every draw has some."""
    factor = sequences.lengths[:, None].float() / masked.sum(dim=2).float()
    return weigh(sequences, masked, factor, prompt)
