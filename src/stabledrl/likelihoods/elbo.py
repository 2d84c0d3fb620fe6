"""Monte-Carlo estimates of the evidence lower bound of a masked diffusion language model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from stabledrl.chunked_cross_entropy import chosen_log_probs
from stabledrl.likelihoods.eubo import Reduction, eubo
from stabledrl.likelihoods.mask_laws import MASK_LAWS, Masking, check_mask_law
from stabledrl.likelihoods.settings import check_settings, mask_step, provided
from stabledrl.protocols import Denoiser, LikelihoodEstimator, Need
from stabledrl.types import Corruption, LikelihoodEstimate, Sequences, Vocabulary


def token_elbo(token_log_probs: Tensor, scored: Tensor, weight: Tensor) -> Tensor:
    """Each token's share of the ELBO: the mean over draws of its weighted log-probability where a draw scores it.

    Args:
        token_log_probs: (N, K, C) float32, 0 where not scored.
        scored: (N, K, C) bool.
        weight: (N, K, C) float32, of `Corruption`: for most laws L / k at each of a draw's k scored tokens.

    Returns:
        (N, C) float32, 0 for a token that no draw scores.
    """
    return torch.where(scored, token_log_probs * weight, 0.0).mean(dim=1)


def elbo(token_shares: Tensor, lengths: Tensor, reduction: Reduction) -> Tensor:
    """Sum of the tokens' shares (LLaDA, arXiv 2502.09992, equation 14).

    Args:
        token_shares: (N, C) float32, from `token_elbo`.
        lengths: (N,) int64, scored tokens L.
        reduction: `sum` estimates log p; `length_normalized` divides it by L: the mean over draws of the mean
            log-probability of a masked token.

    Returns:
        (N,) float32.
    """
    total = token_shares.sum(dim=1)
    return total / lengths if reduction == "length_normalized" else total


def estimate(
    forward: Denoiser,
    inputs: Mapping[str, Any],
    scored: Tensor,
    sequences: Sequences,
    corruption: Corruption,
    *,
    reduction: Reduction,
    eubo_beta: float | None,
    keep_logits: bool,
) -> LikelihoodEstimate:
    """Makes the estimate from a forward pass over corrupted sequences.

    Args:
        forward: The policy.
        inputs: Arguments of the pass; `keep` is boolean, its True positions in the order of those of `scored`.
        scored: (N, K, C) bool.
        sequences: N rows.
        corruption: Their corruptions.
        reduction: `length_normalized` or `sum`.
        eubo_beta: Exponent of the EUBO; None leaves it out.
        keep_logits: Have the pass return logits, and hand them out. Without, they are never held all at once.

    Returns:
        The estimate, in float32.
    """
    lengths, weight = sequences.lengths, corruption.weight
    targets = sequences.completion_ids[:, None].expand_as(scored)[scored]
    logits = forward(**inputs).float() if keep_logits else None
    chosen = forward(**inputs, targets=targets) if logits is None else chosen_log_probs(logits, targets)
    token_log_probs = chosen.new_zeros(scored.shape).masked_scatter(scored, chosen)
    shares = token_elbo(token_log_probs, scored, weight)
    return LikelihoodEstimate(
        elbo=elbo(shares, lengths, reduction),
        token_elbo=shares,
        token_log_probs=token_log_probs,
        scored=scored,
        eubo=None
        if eubo_beta is None
        else eubo(token_log_probs, scored, weight, lengths, beta=eubo_beta, reduction=reduction),
        logits=logits,
    )


@dataclass(kw_only=True)
class MonteCarloElbo(LikelihoodEstimator):
    """Estimates the ELBO from K random corruptions, and the EUBO from the same ones.

    Args:
        draws: Corruptions per completion, K.
        masking: The law they follow, see `stabledrl.diffusion.masking`. `complementary` and `antithetic` need an even
            number of draws, `coupled` an odd one of at least 3.
        share_masks: Score old and current policy on the same corruptions (common random numbers): the ratio is 1 before
            the first update. False draws anew for every estimate, as the method's release does. Has no effect on
            `trace`, which draws nothing.
        reduction: `length_normalized` or `sum`.
        eubo_beta: Exponent of the EUBO; None leaves it out.
        block_size: Tokens per block, for `block_random`.
        keep_logits: Hand out the logits at scored positions, for objectives that need them.

    Raises:
        UserInputError: A value is out of range.
    """

    draws: int = 2
    masking: Masking = "block_random"
    share_masks: bool = False
    reduction: Reduction = "length_normalized"
    eubo_beta: float | None = 1.5
    block_size: int = 32
    keep_logits: bool = False

    def __post_init__(self) -> None:
        check_settings(self.draws, self.block_size, self.reduction, self.eubo_beta)
        check_mask_law(self.masking, self.draws)

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """Whether the expectation is the ELBO exactly, which is the law's to say."""
        return MASK_LAWS[self.masking].unbiased

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """What the sampler must provide."""
        return frozenset({"step_map"} if MASK_LAWS[self.masking].traced else ())

    @property
    def provides(self) -> frozenset[Need]:  # type: ignore[override]
        """What the estimates hold."""
        shared = self.share_masks or MASK_LAWS[self.masking].traced
        return provided(self.eubo_beta, self.keep_logits, shared, self.reduction)

    @override
    def corrupt(self, sequences: Sequences, *, update: int | None) -> Corruption:
        step = mask_step(self.share_masks, update)
        return MASK_LAWS[self.masking](sequences, self.draws, step, block_size=self.block_size)

    @override
    def __call__(
        self, forward: Denoiser, sequences: Sequences, corruption: Corruption, *, vocabulary: Vocabulary
    ) -> LikelihoodEstimate:
        prompt_length, draws = sequences.prompt_length, corruption.masked.shape[1]
        corrupted = sequences.token_ids[:, None].masked_fill(corruption.masked, vocabulary.mask_token_id)
        scored = corruption.scored(sequences)
        keep = torch.cat([torch.zeros_like(corruption.masked[:, :, :prompt_length]), scored], dim=2)
        inputs = {
            "token_ids": corrupted.flatten(0, 1),
            "attention_mask": sequences.attention_mask.repeat_interleave(draws, dim=0),
            "keep": keep.flatten(0, 1),
        }
        return estimate(
            forward,
            inputs,
            scored,
            sequences,
            corruption,
            reduction=self.reduction,
            eubo_beta=self.eubo_beta,
            keep_logits=self.keep_logits,
        )
