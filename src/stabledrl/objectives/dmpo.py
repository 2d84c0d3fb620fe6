"""DMPO: matching the reward-tilted distribution by a weighted denoising cross-entropy (arXiv 2510.08233)."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.objectives.importance import effective_sample_size, group_log_sum_exp
from stabledrl.protocols import GroupCoupledObjective, Need
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch

WeightBaseline = Literal["negative", "mean", "none"]
"""What is taken off a completion's weight, see `DMPO`."""


class DMPO(GroupCoupledObjective):
    """Distribution matching policy optimisation (arXiv 2510.08233), averaged over prompts:

        loss = -(1 / prompts) * sum_i (w_i - b_i) * l_i,   w = softmax(r / alpha) over the completions of one prompt

    The optimum of the reward under a KL penalty of strength alpha is the policy tilted by exp(r / alpha). Its
    cross-entropy against the policy is estimated from the old policy's samples, which w weighs to the tilted
    distribution. l_i is the denoising log-likelihood per token: the mean over draws of the weighted log-probabilities
    of the masked tokens, divided by the completion's length, whatever the estimator's `reduction`. No ratio enters, and
    no gradient goes through the weights, which stay the same for all updates of a rollout.

    From few samples all weights are positive: bad completions are raised too, just less. So a baseline b is subtracted:

    - `negative`: softmax(-r / alpha), the choice of the release's training script: low rewards are pushed down by what
      high rewards are raised by. With alpha 1 these are the weights of wd1 (arXiv 2507.08838);
    - `mean`: the mean weight, 1 / n for a prompt's n completions;
    - `none`: the plain importance-weighted cross-entropy.

    With either baseline the w_i - b_i of a prompt sum to 0, and are all 0 where its rewards are equal.

    What the paper has beyond this: the pretrained model is tilted (in the release: a regularly synchronised reference),
    so the weights also hold the ratio of reference to old policy along the trajectory. Here the old policy itself is
    tilted, as if the reference were synchronised at every rollout. A third baseline, the softmax of the ratio of
    current to old policy, and the discriminative variant of the loss are left out. The release masks each token with a
    probability drawn from [0.1, 1], in complementary pairs; here the estimator's masking decides.

    Rewards are used, not advantages: a softmax does not see what is subtracted from all rewards of a prompt, and a
    division by their deviation would give each prompt an alpha of its own. Completions without a reward are left out:
    they neither weigh nor count.

    Args:
        alpha: Temperature of the tilt in units of reward, above 0; small values weigh the best completions only.
        baseline: `negative`, `mean` or `none`.

    Raises:
        UserInputError: A value is out of range.
    """

    needs: frozenset[Need] = frozenset({"elbo"})
    uses_ratio = False

    def __init__(self, alpha: float = 0.04, baseline: WeightBaseline = "negative") -> None:
        if not 0 < alpha < math.inf:
            raise UserInputError(f"alpha {alpha} must be finite and above 0")
        if baseline not in get_args(WeightBaseline):
            raise UserInputError(f"baseline {baseline!r} is not one of {', '.join(get_args(WeightBaseline))}")
        self.alpha = alpha
        self.baseline: WeightBaseline = baseline

    def log_normalizers(self, current: LikelihoodEstimate | None, rollouts: RolloutBatch) -> Tensor:
        """Logs of what each group's weights and baselines are divided by.

        Args:
            current: Not used, weights depend on rewards alone.
            rollouts: N rows; those that are not graded are left out.

        Returns:
            (G, 2), or (G, 1) without a baseline, float64; -inf for a group without graded rows.
        """
        groups, count = rollouts.group_index[rollouts.graded], rollouts.totals.groups
        sums = [group_log_sum_exp(column, groups, count) for column in self._exponents(rollouts).unbind(dim=1)]
        return torch.stack(sums, dim=1)

    def _exponents(self, rollouts: RolloutBatch) -> Tensor:
        """(n, 2) or (n, 1) float64 for the n graded rows: of the weight and, where there is one, of the baseline."""
        # Twice the precision: with a small alpha, a group's log-sum would swallow the log of its number of rows.
        tilt = rollouts.rewards[rollouts.graded].double() / self.alpha
        subtracted = {"negative": [-tilt], "mean": [torch.zeros_like(tilt)], "none": []}[self.baseline]
        return torch.stack([tilt, *subtracted], dim=1)

    def weights(self, rollouts: RolloutBatch, group_log_normalizer: Tensor | None = None) -> Tensor:
        """The factor of each row's log-likelihood, w - b.

        Args:
            rollouts: N rows.
            group_log_normalizer: As in the call.

        Returns:
            (N,) float64, 0 where not graded.
        """
        rows = rollouts.graded
        if group_log_normalizer is None:
            group_log_normalizer = self.log_normalizers(None, rollouts)
        shares = torch.exp(self._exponents(rollouts) - group_log_normalizer[rollouts.group_index[rows]])
        return shares.new_zeros(len(rows)).masked_scatter(rows, shares[:, 0] - shares[:, 1:].sum(dim=1))

    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        """Computes the batch's share of the update's loss.

        Args:
            current: Estimate under the policy being trained, with gradient.
            rollouts: The same rows' rollouts; they may cover some of the update's groups only.
            group_log_normalizer: From `log_normalizers`, for groups that are split over batches; None when the batch
                holds whole groups.

        Returns:
            Loss and `effective_sample_size` of the weights w.
        """
        log_likelihood = current.token_elbo.sum(dim=1) / rollouts.sequences.lengths
        weights = self.weights(rollouts, group_log_normalizer).to(log_likelihood.dtype)
        # Left out, not multiplied by 0: an ungraded row's estimate must not decide whether the loss is finite.
        terms = torch.where(rollouts.graded, weights * log_likelihood, 0.0)
        tilt = rollouts.rewards.double() / self.alpha
        effective = effective_sample_size(tilt, rollouts.graded, rollouts.group_index).float()
        return ObjectiveOutput(loss=-terms.sum() / rollouts.totals.groups, metrics={"effective_sample_size": effective})
