"""Decoding for block-causal diffusion models: block after block, on an exact cache of keys and values."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from stabledrl.diffusion.block_grid import BlockGrid
from stabledrl.errors import UserInputError
from stabledrl.protocols import Denoiser, Need, Sampler
from stabledrl.randomness import Purpose, uniforms
from stabledrl.samplers.block_context import BlockContext, CachedContext, PlainContext
from stabledrl.samplers.categorical import mask_candidates, sample_tokens
from stabledrl.samplers.completion import check_finite, check_sizes, check_temperature, is_end, until_first_end
from stabledrl.samplers.remasking import transfer, transfer_schedule
from stabledrl.types import Completions, Vocabulary

Remasking = Literal["low_confidence", "random", "dynamic"]


@dataclass(frozen=True, kw_only=True)
class _Block:
    """One block of n rows while it is decoded.

    Attributes:
        token_ids: (n, B) int64, prompt tokens and decided tokens; mask tokens elsewhere.
        masked: (n, B) bool, response positions still undecided.
        steps: (n, B) int64, the step that decided each position; -1 where none did.
        broken: (n,) bool, whether logits were not finite.
    """

    token_ids: Tensor
    masked: Tensor
    steps: Tensor
    broken: Tensor


class BlockDiffusionSampler(Sampler):
    """Block-diffusion decoding of SDAR (arXiv 2510.06303): each block is denoised given the clean ones before it.

    Blocks count from a row's first real token, so a prompt's last tokens may share the first response block; they are
    never masked. Positions of the last block beyond the completion stay mask tokens. The whole prompt blocks are read
    once per distinct prompt (equal rows side by side), and a block's clean keys and values are computed in the same
    pass as the next block's first denoising step. Rows that hold an end token leave the batch after their block. None
    of this changes what is sampled: a row's completion depends on its prompt and its key alone.

    The number of forward passes depends on the rows. A policy whose forward pass waits for other processes (sharded
    weights) has to gather its weights before.

    Args:
        completion_length: Tokens per completion, C.
        block_size: Tokens per block of the policy; divides `completion_length`.
        denoising_steps: Denoising steps over C aligned tokens, a multiple of the number of blocks, at most C. A block
            that begins with prompt tokens decides as many tokens per step and so needs fewer steps.
        remasking: Which candidates a step keeps: `low_confidence` the most probable (probability at temperature 1),
            `random` any, `dynamic` all that are more probable than `threshold` and at least as many as
            `low_confidence` would.
        threshold: Probability for `dynamic`.
        use_cache: False recomputes the whole sequence at every step: same completions, slower.

    Raises:
        UserInputError: The values do not fit each other.
    """

    provides: frozenset[Need] = frozenset({"step_map"})

    def __init__(
        self,
        completion_length: int = 256,
        block_size: int = 4,
        denoising_steps: int = 256,
        remasking: Remasking = "low_confidence",
        *,
        threshold: float = 0.9,
        use_cache: bool = True,
    ) -> None:
        check_sizes(completion_length, block_size, denoising_steps)
        if remasking not in get_args(Remasking):
            raise UserInputError(f"remasking {remasking!r} is unknown; use one of {', '.join(get_args(Remasking))}")
        if not 0 <= threshold <= 1:
            raise UserInputError(f"threshold {threshold} is not a probability; use a number from 0 to 1")
        self.completion_length = completion_length
        self.block_size = block_size
        self.attention_block_size = block_size
        self.denoising_steps = denoising_steps
        self.remasking = remasking
        self.threshold = threshold
        self.use_cache = use_cache

    @torch.no_grad()
    def __call__(
        self,
        forward: Denoiser,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        *,
        vocabulary: Vocabulary,
        row_keys: Tensor,
        temperature: float,
    ) -> Completions:
        """Samples one completion per row; arguments and result are those of `stabledrl.protocols.Sampler`.

        Raises:
            UserInputError: The temperature is negative or not finite, or the policy has no cache.
            FloatingPointError: The policy returned logits that are not finite.
        """
        check_temperature(temperature)
        token_ids = prompt_ids.new_full((len(prompt_ids), self.completion_length), vocabulary.mask_token_id)
        step_map = torch.full_like(token_ids, -1)
        broken = torch.zeros_like(row_keys, dtype=torch.bool)
        grid = BlockGrid.of(prompt_mask.bool(), self.block_size)
        rows = torch.arange(len(row_keys), device=row_keys.device)
        context = self._context(forward, grid, prompt_ids, vocabulary) if len(rows) else None
        number = 0
        while context is not None and len(rows):
            block = self._decode_block(context, number, row_keys[rows], vocabulary, temperature)
            index = context.grid.response_index(context.columns(number))
            inside = (index >= 0) & (index < self.completion_length)
            place = (rows[:, None].expand_as(index)[inside], index[inside])
            token_ids[place], step_map[place] = block.token_ids[inside], block.steps[inside]
            broken[rows] |= block.broken
            ended = (is_end(block.token_ids, vocabulary) & inside).any(dim=1) | (index[:, -1] + 1 >= token_ids.shape[1])
            going = (~ended).nonzero().squeeze(1)
            context.advance(block.token_ids, going)
            rows, number = rows[going], number + 1
        check_finite(broken)
        return until_first_end(token_ids, step_map, vocabulary)

    def _context(self, forward: Denoiser, grid: BlockGrid, prompt_ids: Tensor, vocabulary: Vocabulary) -> BlockContext:
        kind = CachedContext if self.use_cache else PlainContext
        return kind(forward, grid, prompt_ids, vocabulary.mask_token_id)

    def _decode_block(
        self, context: BlockContext, number: int, row_keys: Tensor, vocabulary: Vocabulary, temperature: float
    ) -> _Block:
        """Decides the response's block with the given number for the n rows of the context."""
        columns = context.columns(number)
        index = context.grid.response_index(columns)
        token_ids = context.prompt_tokens(columns)
        block = _Block(
            token_ids=token_ids,
            masked=(index >= 0) & (index < self.completion_length),
            steps=torch.full_like(token_ids, -1),
            broken=torch.zeros_like(row_keys, dtype=torch.bool),
        )
        steps = self.denoising_steps * self.block_size // self.completion_length
        for step, count in enumerate(transfer_schedule(self.block_size, steps), start=number * steps):
            if step > number * steps and not block.masked.any():
                break
            logits = mask_candidates(context.logits(block.token_ids, block.masked), vocabulary)
            draws = uniforms(row_keys, Purpose.TOKEN, step, index)[block.masked]
            chosen, probability = sample_tokens(logits, draws, temperature)
            order = uniforms(row_keys, Purpose.REMASKING, step, index) if self.remasking == "random" else None
            block = self._decide(block, chosen, probability, order=order, step=step, count=count)
        return block

    def _decide(
        self, block: _Block, chosen: Tensor, probability: Tensor, *, order: Tensor | None, step: int, count: int
    ) -> _Block:
        """Keeps some of the candidates (M,) of the masked positions, at least `count` a row where as many are left."""
        masked = block.masked
        candidates = block.token_ids.masked_scatter(masked, chosen)
        confidence = probability.new_zeros(masked.shape).masked_scatter(masked, probability)
        decided = transfer(confidence if order is None else order, masked, count)
        if self.remasking == "dynamic":
            decided |= masked & (confidence > self.threshold)
        return replace(
            block,
            token_ids=torch.where(decided, candidates, block.token_ids),
            masked=masked & ~decided,
            steps=block.steps.masked_fill(decided, step),
            broken=block.broken | confidence.isnan().any(dim=1),
        )
