"""Decoding for full-attention masked diffusion models: block after block, several denoising steps per block."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.protocols import Denoiser, Need, Sampler
from stabledrl.randomness import Purpose, uniforms
from stabledrl.samplers.categorical import mask_candidates, sample_tokens
from stabledrl.samplers.completion import check_finite, check_sizes, check_temperature, is_end, until_first_end
from stabledrl.samplers.remasking import transfer, transfer_schedule
from stabledrl.types import Completions, Vocabulary

Remasking = Literal["low_confidence", "random"]


@dataclass(frozen=True, kw_only=True)
class _Policy:
    """Who proposes tokens, and how."""

    forward: Denoiser
    vocabulary: Vocabulary
    temperature: float

    def propose(self, token_ids: Tensor, attention_mask: Tensor, keep: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """A candidate and its probability for each position (n, m) in `keep`."""
        logits = self.forward(token_ids, attention_mask, keep=keep)
        return sample_tokens(mask_candidates(logits, self.vocabulary), draws, self.temperature)


class SemiAutoregressiveSampler(Sampler):
    """Semi-autoregressive decoding of LLaDA (Nie et al., arXiv 2502.09992, section 2.4).

    The completion starts as mask tokens. Its blocks are decoded from left to right; at each denoising step every masked
    position of the block gets a candidate and some of them are kept, the rest stays masked. Logits are computed at the
    block's masked positions only. Once a block is done, rows that hold an end token leave the batch. None of this
    changes what is sampled: a row's completion depends on its prompt and its key alone.

    The number of forward passes depends on where the rows end. A policy whose forward pass waits for other processes
    (sharded weights) has to gather its weights before.

    Args:
        completion_length: Tokens per completion, C.
        block_size: Tokens per block; divides `completion_length`.
        denoising_steps: Forward passes over the whole completion; a multiple of the number of blocks, at most C.
        remasking: What decides which candidates are kept: `low_confidence` keeps the most probable (probability at
            temperature 1), `random` any.

    Raises:
        UserInputError: The values do not fit each other.
    """

    provides: frozenset[Need] = frozenset({"step_map"})

    def __init__(
        self,
        completion_length: int = 256,
        block_size: int = 32,
        denoising_steps: int = 128,
        remasking: Remasking = "low_confidence",
    ) -> None:
        check_sizes(completion_length, block_size, denoising_steps)
        if remasking not in get_args(Remasking):
            raise UserInputError(f"remasking {remasking!r} is unknown; use one of {', '.join(get_args(Remasking))}")
        self.completion_length = completion_length
        self.block_size = block_size
        self.denoising_steps = denoising_steps
        self.remasking = remasking

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
            UserInputError: The temperature is negative or not finite.
            FloatingPointError: The policy returned logits that are not finite.
        """
        check_temperature(temperature)
        policy = _Policy(forward=forward, vocabulary=vocabulary, temperature=temperature)
        token_ids = prompt_ids.new_full((len(prompt_ids), self.completion_length), vocabulary.mask_token_id)
        step_map = torch.full_like(token_ids, -1)
        broken = torch.zeros_like(row_keys, dtype=torch.bool)
        attention_mask = torch.cat([prompt_mask.bool(), torch.ones_like(token_ids, dtype=torch.bool)], dim=1)
        rows = torch.arange(len(row_keys), device=row_keys.device)
        for start in range(0, self.completion_length, self.block_size):
            if len(rows) == 0:
                break
            whole = torch.cat([prompt_ids[rows], token_ids[rows]], dim=1)
            decoded = self._decode_block(policy, whole, attention_mask[rows], row_keys[rows], start)
            block = slice(start, start + self.block_size)
            for target, part in zip((token_ids[:, block], step_map[:, block], broken), decoded):
                target.index_copy_(0, rows, part)
            if block.stop < self.completion_length:
                # The block's only wait for the device: how many rows go on.
                rows = rows[(~is_end(decoded[0], vocabulary).any(dim=1)).nonzero().squeeze(1)]
        check_finite(broken)
        return until_first_end(token_ids, step_map, vocabulary)

    def _decode_block(
        self, policy: _Policy, token_ids: Tensor, attention_mask: Tensor, row_keys: Tensor, start: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Decides the block at completion positions `start` and on, for n rows given as whole sequences (n, T).

        Returns:
            Tokens (n, block_size), the steps that decided them (n, block_size), and (n,) bool, whether logits were not
            finite.
        """
        prompt_length = token_ids.shape[1] - self.completion_length
        block = slice(prompt_length + start, prompt_length + start + self.block_size)
        steps_per_block = self.denoising_steps * self.block_size // self.completion_length
        first_step = start // self.block_size * steps_per_block
        step_map = torch.full_like(token_ids, -1)
        broken = torch.zeros_like(row_keys, dtype=torch.bool)
        # Every row decides equally many positions at a step, so the masked ones form a rectangle.
        keep = torch.arange(block.start, block.stop, device=token_ids.device).repeat(len(token_ids), 1)
        for step, count in enumerate(transfer_schedule(self.block_size, steps_per_block), start=first_step):
            positions = keep - prompt_length
            draws = uniforms(row_keys, Purpose.TOKEN, step, positions)
            candidates, confidence = policy.propose(token_ids, attention_mask, keep, draws)
            broken |= confidence.isnan().any(dim=1)
            if self.remasking == "random":
                confidence = uniforms(row_keys, Purpose.REMASKING, step, positions)
            decided = transfer(confidence, None, count)
            token_ids = token_ids.scatter(1, keep, torch.where(decided, candidates, policy.vocabulary.mask_token_id))
            step_map = step_map.scatter(1, keep, torch.where(decided, step, -1))
            undecided_first = decided.byte().argsort(dim=1, stable=True)
            keep = keep.gather(1, undecided_first[:, : keep.shape[1] - count])
        return token_ids[:, block], step_map[:, block], broken
