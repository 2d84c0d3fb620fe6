"""wd1: weighted log-likelihoods instead of importance ratios (arXiv 2507.08838)."""

import math

import torch
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.objectives.importance import group_log_sum_exp
from stabledrl.protocols import GroupCoupledObjective, Need
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch


class WD1(GroupCoupledObjective):
    """The ratio-free loss of wd1 (arXiv 2507.08838, "wd1: Weighted Policy Optimization for Reasoning in Diffusion
    Language Models"), averaged over prompts:

        loss = -sum_i w+_i l_i + sum_i w-_i l_i,   w+ = softmax(psi A),   w- = softmax(-psi A)

    i runs over the completions of one prompt, l_i is the log-likelihood of a completion under the current policy. It is
    regression onto the optimum of a KL-regularised objective, plus unlearning of the worse completions. No old policy
    enters: nothing holds the policy back but the step size and the number of updates on a rollout, and the loss has no
    lower bound, because the likelihood of a bad completion may fall without end.

    What the paper leaves open or leaves to the configuration:

    - l is the estimator's: as published it is `MeanField`, summed over tokens (`reduction: sum`), with prompt masks
      drawn anew for every update (`share_masks: false`). A length-normalised one makes long completions weigh less.
    - A = r - mean of the group, as in the release: `center` in `stabledrl.advantages`. `standardize` makes the weights
      independent of the rewards' scale.
    - psi is 1 in the release. It stands for the inverse of the strength of the regularisation towards old policy and
      reference, so no other KL term is added: the module's `kl_coefficient` is 0. The samples come from the old policy
      alone, not from a mixture with the reference.
    - The release takes the softmax over what a device holds; here it is always the prompt's group.

    Completions without a reward are left out: they neither weigh nor count in a softmax. Where all rewards of a prompt
    are equal the two sums cancel exactly; such prompts count in the mean.

    Args:
        psi: Factor of the advantages within the softmax: the larger, the more the best and worst completion weigh.

    Raises:
        UserInputError: psi is not a finite number above 0.
    """

    needs: frozenset[Need] = frozenset({"elbo"})
    uses_ratio = False

    def __init__(self, psi: float = 1.0) -> None:
        if not 0 < psi < math.inf:
            raise UserInputError(f"psi {psi} must be finite and greater than 0")
        self.psi = psi

    def log_normalizers(self, current: LikelihoodEstimate | None, rollouts: RolloutBatch) -> Tensor:
        """Logs of the divisors of each group's two softmaxes.

        Args:
            current: Has no effect.
            rollouts: Rows; those that are not graded are left out.

        Returns:
            (G, 2) float32 (float64 for float64), for w+ and w-; -inf for a group without graded rows.
        """
        rows, groups = rollouts.graded, rollouts.totals.groups
        scores = self.psi * rollouts.advantages[rows]
        return torch.stack(
            [group_log_sum_exp(sign * scores, rollouts.group_index[rows], groups) for sign in (1, -1)], dim=1
        )

    def weights(self, rollouts: RolloutBatch, group_log_normalizer: Tensor | None = None) -> Tensor:
        """w+ - w- of each row within its group.

        Args:
            rollouts: N rows.
            group_log_normalizer: As in the call.

        Returns:
            (N,), 0 where not graded.
        """
        rows = rollouts.graded
        if group_log_normalizer is None:
            group_log_normalizer = self.log_normalizers(None, rollouts)
        scores = self.psi * rollouts.advantages[rows]
        up, down = group_log_normalizer[rollouts.group_index[rows]].unbind(dim=1)
        weights = torch.exp(scores - up) - torch.exp(-scores - down)
        return weights.new_zeros(len(rows)).masked_scatter(rows, weights)

    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        """Computes the batch's share of the update's loss.

        Args:
            current: Estimate under the policy being trained, with gradient.
            rollouts: The same rows' rollouts; they may cover some of the update's groups only.
            group_log_normalizer: (G, 2) from `log_normalizers`, for groups that are split over batches; None when the
                batch holds whole groups.

        Returns:
            Loss, `log_likelihood_mean` over all rows, and `weight_max`, the largest of |w+ - w-|.
        """
        weights = self.weights(rollouts, group_log_normalizer)
        # Left out, not multiplied by 0: an ungraded row's estimate must not decide whether the loss is finite.
        terms = torch.where(rollouts.graded, weights * current.elbo, 0.0)
        metrics = {"log_likelihood_mean": current.elbo.detach().mean(), "weight_max": weights.abs().max()}
        return ObjectiveOutput(loss=-terms.sum() / rollouts.totals.groups, metrics=metrics)
