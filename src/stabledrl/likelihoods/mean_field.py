"""The mean-field log-likelihood: every token predicted at once, from the prompt alone."""

from dataclasses import dataclass

from typing_extensions import override

from stabledrl.diffusion.masking import CONTEXT_MASK_RATE
from stabledrl.diffusion.masking.mean_field import mean_field
from stabledrl.errors import UserInputError
from stabledrl.likelihoods.elbo import MonteCarloElbo
from stabledrl.likelihoods.eubo import Reduction
from stabledrl.likelihoods.settings import mask_step
from stabledrl.protocols import Denoiser, LikelihoodEstimator, Need
from stabledrl.types import Corruption, LikelihoodEstimate, Sequences, Vocabulary


@dataclass(kw_only=True)
class MeanField(LikelihoodEstimator):
    """Takes the tokens of a completion for independent of each other given the prompt (d1, arXiv 2504.12216).

        log p(completion) = sum over tokens of log p(token | prompt, whole completion masked)

    One forward pass scores every token. It is a proxy for the log-likelihood, neither the ELBO nor an estimate of it:
    what the tokens say about each other is left out. Each prompt token is masked with probability .15, which makes the
    updates on a rollout differ from each other where masks are not shared.

    For models with full attention only.

    Args:
        draws: Prompt masks per completion, K: a token's log-probability is the mean over them.
        prompt_mask_rate: Probability that a prompt token is masked, at least 0 and below 1.
        share_masks: Score old and current policy on the same masks, which ratios per token need: they are 1 before the
            first update. False draws anew for every estimate.
        reduction: `length_normalized` is the mean over tokens, `sum` their sum.
        keep_logits: Hand out the logits of every token, for objectives that need them.

    Raises:
        UserInputError: A value is out of range.
    """

    unbiased = False

    draws: int = 1
    prompt_mask_rate: float = CONTEXT_MASK_RATE
    share_masks: bool = True
    reduction: Reduction = "length_normalized"
    keep_logits: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.prompt_mask_rate < 1:
            raise UserInputError(f"prompt_mask_rate {self.prompt_mask_rate} must be at least 0 and below 1")
        if self.prompt_mask_rate == 0 and self.draws > 1:
            raise UserInputError(f"draws {self.draws} are all the same where prompt_mask_rate is 0; use 1")
        self._scorer = MonteCarloElbo(
            draws=self.draws,
            share_masks=self.share_masks,
            reduction=self.reduction,
            eubo_beta=None,
            keep_logits=self.keep_logits,
        )
        """Scores corruptions by whatever law, and refuses the same settings."""

    @property
    def provides(self) -> frozenset[Need]:  # type: ignore[override]
        """What the estimates hold."""
        return self._scorer.provides

    @override
    def corrupt(self, sequences: Sequences, *, update: int | None) -> Corruption:
        step = mask_step(self.share_masks, update)
        return mean_field(sequences, self.draws, step, self.prompt_mask_rate)

    @override
    def __call__(
        self, forward: Denoiser, sequences: Sequences, corruption: Corruption, *, vocabulary: Vocabulary
    ) -> LikelihoodEstimate:
        return self._scorer(forward, sequences, corruption, vocabulary=vocabulary)
