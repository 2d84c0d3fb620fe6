"""Every extension point on one screen. Derive from these: YAML then knows the class by its name."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from stabledrl.grade import Reward, RewardFunction
from stabledrl.types import (
    Completions,
    Corruption,
    LikelihoodEstimate,
    ObjectiveOutput,
    RolloutBatch,
    Sequences,
    Vocabulary,
)

__all__ = [
    "Backbone",
    "Denoiser",
    "GroupCoupledObjective",
    "LikelihoodEstimator",
    "Need",
    "Objective",
    "Reward",
    "RewardFunction",
    "Sampler",
    "Split",
    "Task",
]

Need = Literal["elbo", "eubo", "token_log_probs", "logits", "step_map", "shared_masks", "length_normalized"]
"""What an objective or an estimator can ask for, and an estimator or (for `step_map`) a sampler can provide.

- `elbo`, with its tokens' shares; `eubo`; `token_log_probs`; `logits`: what estimates hold;
- `shared_masks`: old and current estimate see the same corruptions, so that tokens can be compared one by one;
- `length_normalized`: bounds are per token;
- `step_map`: completions tell when each token was decided.
"""


class Denoiser(Protocol):
    """The forward pass of a policy, aligned: the logits at position i predict token i."""

    def __call__(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        keep: Tensor | None = None,
        targets: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Computes logits, or the log-probabilities of given tokens, which takes less memory.

        Args:
            token_ids: (N, T) int64.
            attention_mask: (N, T) bool, True = real token, attended as the model's family does; or (N or 1, 1, T, S)
                bool, True = attend, over S = cached + T keys; or a flex_attention `BlockMask`; None = all tokens are
                real.
            keep: Where to compute logits: None for all positions, (N, n) int64 for n positions a row, (N, T) bool.
            targets: (M,) int64, a token for each of the M True positions of `keep`; None asks for logits.
            position_ids: (N, T) int64; by default a row's real tokens are numbered from 0.
            cache: Keys and values of earlier tokens (`Policy.new_cache`), extended in place; needs a 4D mask and
                position_ids. Only block-causal models have an exact one.

        Returns:
            (N, T, V), (N, n, V) or (M, V) for M True positions in row-major order. With targets, (M,) float32: their
            log-probabilities.
        """
        ...


class Backbone(ABC):
    """What differs between model families, on top of transformers' own model classes."""

    family: str

    @abstractmethod
    def matches(self, config: dict[str, Any]) -> bool:
        """Whether a config.json is of this family."""
        ...

    @abstractmethod
    def load(self, path: str, *, dtype: torch.dtype, mask_token_id: int | None, block_size: int | None) -> Any:
        """Loads a `stabledrl.backbones.Policy`; refuses missing, unexpected or mismatched weights."""
        ...


class Sampler(ABC):
    """Turns prompts into completions.

    Attributes:
        completion_length: Tokens per completion, C.
        provides: What an objective may use of the completions.
        attention_block_size: Block size of the block-causal policy that it is right for; None for full attention.
    """

    completion_length: int
    provides: frozenset[Need]
    attention_block_size: int | None = None

    @abstractmethod
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
        """Samples one completion per row.

        Args:
            forward: The policy.
            prompt_ids: (N, P) int64, padded on the left.
            prompt_mask: (N, P) bool, False on padding.
            vocabulary: Special ids and candidates.
            row_keys: (N,) int64; rows with different keys draw independently.
            temperature: 0 takes the most likely token.

        Returns:
            N completions of length `completion_length`.
        """
        ...


class LikelihoodEstimator(ABC):
    """Estimates a completion's log-likelihood, in two steps so that corruptions can be shared, given and tested.

    Attributes:
        unbiased: Whether the expectation over corruptions is the ELBO exactly. Tested by enumeration.
        needs: What the sampler must provide.
        provides: What the estimates hold.
        attention_block_size: Block size of the block-causal policy that it is right for; None for full attention.
    """

    unbiased: bool
    needs: frozenset[Need] = frozenset()
    provides: frozenset[Need]
    attention_block_size: int | None = None

    @abstractmethod
    def corrupt(self, sequences: Sequences, *, update: int | None) -> Corruption:
        """Draws corruptions for the estimate under the old policy (`update` None) or of the given inner update."""
        ...

    @abstractmethod
    def __call__(
        self, forward: Denoiser, sequences: Sequences, corruption: Corruption, *, vocabulary: Vocabulary
    ) -> LikelihoodEstimate:
        """Scores completions on given corruptions; differentiable in the policy's parameters."""
        ...


class Objective(ABC):
    """A policy-gradient loss. Pure: no logging, no devices, no collectives.

    Attributes:
        needs: What the estimates must hold; a mismatch is refused before training starts.
        uses_ratio: Whether an importance ratio enters (what a stress test may inflate).
    """

    needs: frozenset[Need]
    uses_ratio: bool

    @abstractmethod
    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        """Computes the batch's share of the update's loss.

        Args:
            current: Estimate under the policy being trained, with gradient.
            rollouts: The same rows' rollouts.
            group_log_normalizer: From `log_normalizers` over whole groups, for a `GroupCoupledObjective` whose groups
                are split over batches; None when the batch holds whole groups.

        Returns:
            Loss and metrics.
        """
        ...


class GroupCoupledObjective(Objective):
    """An objective in which a row's weight depends on the other rows of its group."""

    @abstractmethod
    def log_normalizers(self, current: LikelihoodEstimate | None, rollouts: RolloutBatch) -> Tensor:
        """Logs of the sums over each group's rows that the loss divides by.

        Args:
            current: Estimate without gradient under the policy being trained; None where `uses_ratio` is False.
            rollouts: The same rows' rollouts.

        Returns:
            (G,) or (G, n) for n normalisers, -inf for a group without rows. Those of parts of the rows are combined by
            a logsumexp.
        """
        ...


Split = Literal["train", "evaluation"]


class Task(ABC):
    """A source of prompts with the rewards that judge them.

    Attributes:
        name: Names the task in metrics, e.g. `val/<name>/accuracy`.
        rewards: The first one is the grader that decides accuracy, in training and evaluation alike.
        reward_weights: One factor per reward; the training reward is their weighted sum.
    """

    name: str
    rewards: list[RewardFunction]
    reward_weights: list[float]

    @abstractmethod
    def rows(self, split: Split) -> Sequence[Mapping[str, Any]]:
        """Rows with a `prompt` (text, or a list of chat messages), further columns for the rewards, and, where known,
        a `completion` that demonstrates a right answer. Training rows never occur in the evaluation split.
        """
        ...
