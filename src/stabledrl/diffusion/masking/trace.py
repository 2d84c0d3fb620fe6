"""The masks that a completion was decoded under, from the sampler's record of steps (TraceRL, arXiv 2509.06949)."""

import torch
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.types import Corruption, Sequences


def trace(sequences: Sequences, draws: int, step: int, block_size: int | None = None) -> Corruption:
    """Shows the states of the rollout itself: what was decided earlier is visible, the rest masked.

    The steps of a block are put into K groups of consecutive ones, as equal in size as they can be: step number r of
    the block's S steps belongs to group floor(r K / S). View j is every block's state before its group j, and scores
    the tokens decided in that group, with weight K: every token is scored in exactly one view, and its share of the
    bound is its log-probability there. With K of at least S these are the states that the tokens were decided in, and
    views that are left over score nothing of the block. With fewer, S / K is the paper's shrinkage: the later steps of
    a group are scored as if they had seen no more than its first one.

    S is the number of steps that decided a token of the block, so blocks that took fewer steps than others (dynamic
    decoding, a block that begins with prompt tokens) are grouped on their own. Blocks count from the row's first real
    token. A view masks all blocks at once, which is for models that see earlier blocks in another stream
    (`StaircaseElbo`). Without blocks the steps of the whole completion are grouped: a state of one block then has the
    earlier blocks visible and the later ones masked, as a full-attention model decodes semi-autoregressively.

    What the sampler decided behind the first end token is not kept. Where it had been visible in the end token's own
    block, these views show mask tokens instead.

    Nothing is drawn: a row's masks are always the same. Their weighted sum is no estimate of the ELBO.

    Args:
        sequences: N sampled rows, with their step map.
        draws: Groups of steps, K.
        step: Has no effect, unlike in laws that draw.
        block_size: Tokens per block of a block-causal policy; None for full attention.

    Returns:
        The corruption.

    Raises:
        UserInputError: The rows were not sampled.
    """
    if sequences.step_map is None:
        raise UserInputError(
            "masking trace needs the step at which each token was decided, which only sampled completions have; "
            "demonstrations need another masking"
        )
    scored = sequences.completion_mask
    rank, count = _steps_within_blocks(sequences.step_map, scored, _blocks(sequences, block_size))
    view = (rank * draws // count)[:, None]
    number = torch.arange(draws, device=view.device)[:, None]
    masked = (view >= number) & scored[:, None]
    weight = torch.where((view == number) & scored[:, None], float(draws), 0.0)
    prompt = masked.new_zeros(len(masked), draws, sequences.prompt_length)
    return Corruption(masked=torch.cat([prompt, masked], dim=2), weight=weight)


def _blocks(sequences: Sequences, block_size: int | None) -> Tensor:
    """(N, C) int64, the number of each completion token's block, from 0."""
    rows, width = sequences.completion_mask.shape
    place = torch.arange(width, device=sequences.token_ids.device).expand(rows, -1)
    if block_size is None:
        return torch.zeros_like(place)
    tail = sequences.attention_mask[:, : sequences.prompt_length].sum(dim=1, keepdim=True) % block_size
    return (place + tail) // block_size


def _steps_within_blocks(step_map: Tensor, scored: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers the distinct steps of each block from 0.

    Args:
        step_map: (N, C) int64.
        scored: (N, C) bool; other tokens are left out.
        block: (N, C) int64 from 0.

    Returns:
        Of each token's step the number within its block, and the steps of its block; both (N, C), 0 and 1 where not
        scored.
    """
    steps, width = step_map.clamp_min(0) + 1, step_map.shape[1]
    # The block outweighs any step; what is not scored comes last.
    key = (block * (steps.amax(dim=1, keepdim=True) + 1) + steps).masked_fill(~scored, torch.iinfo(torch.int64).max)
    in_order, order = key.sort(dim=1)
    new = torch.cat([torch.zeros_like(order[:, :1]), (in_order.diff(dim=1) != 0).long()], dim=1)
    overall = torch.zeros_like(order).scatter(1, order, new.cumsum(dim=1))
    first = torch.full_like(block, width).scatter_reduce(1, block, overall.masked_fill(~scored, width), "amin")
    last = torch.full_like(block, -1).scatter_reduce(1, block, overall.masked_fill(~scored, -1), "amax")
    rank, count = overall - first.gather(1, block), (last - first + 1).gather(1, block)
    return rank.masked_fill(~scored, 0), count.masked_fill(~scored, 1)
