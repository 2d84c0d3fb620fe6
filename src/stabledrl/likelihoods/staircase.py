"""The ELBO of block-diffusion models, all blocks in one forward pass."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad
from typing_extensions import override

from stabledrl.diffusion import masking
from stabledrl.diffusion.block_grid import BlockGrid, columns_of_blocks
from stabledrl.diffusion.staircase import FLEX_TILE, staircase_block_mask, staircase_mask
from stabledrl.errors import UserInputError
from stabledrl.likelihoods.elbo import estimate
from stabledrl.likelihoods.eubo import Reduction
from stabledrl.likelihoods.settings import check_settings, mask_step, provided
from stabledrl.protocols import Denoiser, LikelihoodEstimator, Need
from stabledrl.types import Corruption, LikelihoodEstimate, Sequences, Vocabulary

Masking = Literal["block_stratified", "trace"]
Attention = Literal["auto", "dense", "flex"]

FLEX_ABOVE = 4096
"""Columns up to which attention is a few per cent of a pass, and sdpa with a written-out mask suffices."""


@dataclass(kw_only=True)
class StaircaseElbo(LikelihoodEstimator):
    """Estimates the ELBO of a block-causal model: each block given the clean blocks before it (arXiv 2603.06743).

    The sum over blocks of (n / k) times the log-probabilities of the k masked of the block's n scored tokens. Blocks
    count from a row's first real token, so the first one may begin with prompt tokens, which stay clean; the last one
    is a whole block to the attention, its positions after the end being mask tokens.

    The pass is over [clean | noised 1 | ... | noised K]. The noised copies hold the response's blocks only; the clean
    one ends before the response's last block, which nothing would look at.

    Attention is sdpa with the mask written out (`dense`) or flex_attention (`flex`), which leaves out the 128 x 128
    tiles without an allowed pair and keeps no mask that grows with the square of the length. The estimates are equal up
    to rounding. flex needs a GPU for gradients. It is compiled in the first pass and once more when the length, or the
    number of rows, first changes; then it serves any, because the pass is padded to a multiple of 128 columns.

    Args:
        block_size: Tokens per block of the policy.
        draws: Corruptions per completion, K.
        masking: `block_stratified` draws masks, unbiased for the ELBO. `trace` shows the states of the rollout itself
            (`stabledrl.diffusion.masking.trace`), K per block: a token's share is its log-probability where it was
            decided, once K is the number of denoising steps of a block.
        share_masks: Score old and current policy on the same corruptions (common random numbers): the ratio is 1 before
            the first update. False draws anew for every estimate. Has no effect on `trace`, which draws nothing.
        reduction: `length_normalized` or `sum`.
        eubo_beta: Exponent of the EUBO; None leaves it out. With `trace`, EUBO and ELBO are equal.
        keep_logits: Hand out the logits at scored positions, for objectives that need them.
        attention: `dense`, `flex`, or `auto`: flex on CUDA for passes of more than 4096 columns, else dense.

    Raises:
        UserInputError: A value is out of range; later, `flex` is to give gradients where it has none.
    """

    block_size: int = 4
    draws: int = 2
    masking: Masking = "block_stratified"
    share_masks: bool = False
    reduction: Reduction = "length_normalized"
    eubo_beta: float | None = 1.5
    keep_logits: bool = False
    attention: Attention = "auto"

    def __post_init__(self) -> None:
        check_settings(self.draws, self.block_size, self.reduction, self.eubo_beta)
        for name, value, known in (
            ("masking", self.masking, get_args(Masking)),
            ("attention", self.attention, get_args(Attention)),
        ):
            if value not in known:
                raise UserInputError(f"{name} {value!r} is unknown; use one of {', '.join(known)}")

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """Whether the expectation is the ELBO exactly; `trace` is no estimate of it."""
        return self.masking == "block_stratified"

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """What the sampler must provide."""
        return frozenset({"step_map"} if self.masking == "trace" else ())

    @property
    @override
    def attention_block_size(self) -> int:  # type: ignore[override]
        return self.block_size

    @property
    def provides(self) -> frozenset[Need]:  # type: ignore[override]
        """What the estimates hold."""
        shared = self.share_masks or self.masking == "trace"
        return provided(self.eubo_beta, self.keep_logits, shared, self.reduction)

    @override
    def corrupt(self, sequences: Sequences, *, update: int | None) -> Corruption:
        law = masking.trace if self.masking == "trace" else masking.block_stratified
        return law(sequences, self.draws, mask_step(self.share_masks, update), self.block_size)

    @override
    def __call__(
        self, forward: Denoiser, sequences: Sequences, corruption: Corruption, *, vocabulary: Vocabulary
    ) -> LikelihoodEstimate:
        scored = corruption.scored(sequences)
        return estimate(
            forward,
            self._one_pass(sequences, corruption.masked, scored, vocabulary.mask_token_id),
            scored,
            sequences,
            corruption,
            reduction=self.reduction,
            eubo_beta=self.eubo_beta,
            keep_logits=self.keep_logits,
        )

    def _one_pass(self, sequences: Sequences, masked: Tensor, scored: Tensor, mask_token_id: int) -> dict[str, Any]:
        """Arguments of the forward pass over the clean copy and the K noised ones, S columns in all."""
        token_ids, draws = sequences.token_ids, masked.shape[1]
        grid = BlockGrid.of(sequences.attention_mask[:, : sequences.prompt_length], self.block_size)
        last = grid.prompt_blocks + int(grid.response_blocks(sequences.lengths).max())
        clean = columns_of_blocks(0, last - 1, self.block_size, token_ids.device)
        response = columns_of_blocks(grid.prompt_blocks, last, self.block_size, token_ids.device)
        columns = torch.cat([clean, response.repeat(draws)])
        copy = torch.arange(1, draws + 1, device=clean.device).repeat_interleave(len(response))
        stream = torch.cat([torch.zeros_like(clean), copy])
        noised = [
            grid.lay_out(token_ids.masked_fill(masked[:, draw], mask_token_id), response, mask_token_id)
            for draw in range(draws)
        ]
        index = grid.response_index(response)
        inside = (index >= 0) & (index < scored.shape[2])
        asked = scored.gather(2, index.clamp(0, scored.shape[2] - 1)[:, None].expand(-1, draws, -1)) & inside[:, None]
        keep = torch.cat([asked.new_zeros(len(token_ids), len(clean)), asked.flatten(1)], dim=1)
        flex = self._uses_flex(token_ids.device, len(columns))
        # The columns that fill up flex's last tile are padding: not real, so that nothing attends them.
        filling = (0, -len(columns) % FLEX_TILE if flex else 0)
        attention = [pad(part, filling) for part in (columns // self.block_size, stream, grid.real(columns))]
        shown = torch.cat([grid.lay_out(token_ids, clean, mask_token_id), *noised], dim=1)
        return {
            "token_ids": pad(shown, filling, value=mask_token_id),
            "attention_mask": staircase_block_mask(*attention) if flex else staircase_mask(*attention),
            "keep": pad(keep, filling),
            "position_ids": pad(grid.positions(columns), filling),
        }

    def _uses_flex(self, device: torch.device, columns: int) -> bool:
        if self.attention == "auto":
            return device.type == "cuda" and columns > FLEX_ABOVE
        if self.attention == "flex" and torch.is_grad_enabled() and device.type in {"cpu", "mps"}:
            raise UserInputError(f"attention 'flex' gives no gradients on {device.type}; use 'auto' or 'dense'")
        return self.attention == "flex"
