"""StableDRL: unconditional clipping and self-normalised importance weights (arXiv 2603.06743)."""

from typing import Literal

import torch
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.objectives import surrogate as surrogates
from stabledrl.objectives.importance import check_eps, clip_log_ratio, group_log_sum_exp, ratio_metrics
from stabledrl.protocols import GroupCoupledObjective, Need
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch


class StableDRL(GroupCoupledObjective):
    """The loss whose gradient is the method's update (arXiv 2603.06743, "Stabilizing Reinforcement Learning for
    Diffusion Language Models"), averaged over prompts:

        grad J = E[ (1 / sum_i clip(rho_i)) * sum_j clip(rho_j) * A_j * g_j ]
        clip(rho) = clamp(rho, 1 - eps_low, 1 + eps_high)

    rho is the ratio of the current to the old likelihood estimate (ELBO), i and j run over the completions of one
    prompt, g_j is the gradient of a sequence log-likelihood surrogate, and no gradient goes through rho. The clip holds
    whatever the sign of A, so every weight is bounded; the divisor makes each prompt's update a convex combination of
    the A_j * g_j, no longer than the longest of them. With equal ratios it is GRPO's mean over the group.

    Computed in log space: w = exp(clip(log rho) - logsumexp over the group), loss = -sum_j w_j A_j S_j / prompts.
    Completions without a reward are left out: they neither weigh nor count in a divisor. Prompts whose rewards are all
    equal count in the mean over prompts.

    Paper and public release differ, and both can be configured:

    - The paper's best eps is 5 around 1, so ratios up to 6 and no effective lower bound: the default. The release takes
      5 as the upper bound of the ratio itself and has no lower one: `eps_low=None, eps_high=4.0`.
    - The release normalises over what a device holds; here it is always the prompt's group.
    - The release's ratio is of length-normalised estimates, the paper's reads like one of sums: the estimator's choice.
    - The release's surrogate is the default here: the sandwich of SPG (arXiv 2510.09541) with omega .5.
    - The paper does not state the advantage; the release takes r - mean: `center` in `stabledrl.advantages`.

    Args:
        eps_low: Ratios below 1 - eps_low are raised to it; None, or 1 and above, for no lower bound.
        eps_high: Ratios above 1 + eps_high are lowered to it; None for no upper bound.
        surrogate: `sandwich`: ELBO where A > 0, else omega * EUBO + (1 - omega) * ELBO. `elbo`: ELBO throughout.
        omega: Share of the EUBO in the sandwich, in [0, 1].
        clip: False drops the clip and nothing else (log-ratios stay within +-80, so that exp is finite).
        self_normalize: False divides by the number of the group's completions, as GRPO does, and changes nothing else.

    Raises:
        UserInputError: A value is out of range.
    """

    uses_ratio = True

    def __init__(
        self,
        eps_low: float | None = None,
        eps_high: float | None = 5.0,
        *,
        surrogate: Literal["sandwich", "elbo"] = "sandwich",
        omega: float = 0.5,
        clip: bool = True,
        self_normalize: bool = True,
    ) -> None:
        check_eps(eps_low, eps_high)
        if surrogate not in ("sandwich", "elbo"):
            raise UserInputError(f"surrogate {surrogate!r} must be sandwich or elbo")
        if not 0 <= omega <= 1:
            raise UserInputError(f"omega {omega} must lie between 0 and 1")
        self.eps_low = eps_low if clip else None
        self.eps_high = eps_high if clip else None
        self.surrogate = surrogate
        self.omega = omega
        self.self_normalize = self_normalize
        self.needs: frozenset[Need] = frozenset({"elbo", "eubo"} if surrogate == "sandwich" else {"elbo"})

    def log_normalizers(self, current: LikelihoodEstimate | None, rollouts: RolloutBatch) -> Tensor:
        """Log of each group's divisor: the sum of its clipped ratios, or its number of rows without `self_normalize`.

        Args:
            current: Estimate under the policy being trained.
            rollouts: The same rows; those that are not graded are left out.

        Returns:
            (G,) float32 (float64 for float64), no gradient; -inf for a group without graded rows.
        """
        assert current is not None, "given to an objective that uses a ratio"
        return self._log_normalizers(current.elbo - rollouts.old.elbo, rollouts)

    def _log_normalizers(self, log_ratio: Tensor, rollouts: RolloutBatch) -> Tensor:
        rows = rollouts.graded
        clipped = clip_log_ratio(log_ratio.detach()[rows], self.eps_low, self.eps_high)
        # Without self-normalisation every row counts as a ratio of 1: the same path, so that nothing else changes.
        counted = clipped if self.self_normalize else torch.zeros_like(clipped)
        return group_log_sum_exp(counted, rollouts.group_index[rows], rollouts.totals.groups)

    def weights(self, log_ratio: Tensor, rollouts: RolloutBatch, group_log_normalizer: Tensor | None = None) -> Tensor:
        """The factor of each row's A * surrogate within its group.

        Args:
            log_ratio: (N,) current minus old log-likelihood.
            rollouts: The same rows.
            group_log_normalizer: As in the call.

        Returns:
            (N,) without gradient, 0 where not graded.
        """
        rows = rollouts.graded
        if group_log_normalizer is None:
            group_log_normalizer = self._log_normalizers(log_ratio, rollouts)
        log_ratio, groups = log_ratio.detach()[rows], rollouts.group_index[rows]
        weights = torch.exp(clip_log_ratio(log_ratio, self.eps_low, self.eps_high) - group_log_normalizer[groups])
        return weights.new_zeros(len(rows)).masked_scatter(rows, weights)

    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        """Computes the batch's share of the update's loss.

        Args:
            current: Estimate under the policy being trained, with gradient.
            rollouts: The same rows' rollouts; they may cover some of the update's groups only.
            group_log_normalizer: (G,) from `log_normalizers`, for groups that are split over batches; None when the
                batch holds whole groups.

        Returns:
            Loss and the metrics of `ratio_metrics`.
        """
        log_ratio = current.elbo - rollouts.old.elbo  # detached wherever it is used
        weights = self.weights(log_ratio, rollouts, group_log_normalizer)
        if self.surrogate == "sandwich":
            log_likelihood = surrogates.sandwich(current, rollouts.advantages, self.omega)
        else:
            log_likelihood = surrogates.elbo(current)
        # Left out, not multiplied by 0: an ungraded row's estimate must not decide whether the loss is finite.
        terms = torch.where(rollouts.graded, weights * rollouts.advantages * log_likelihood, 0.0)
        metrics = ratio_metrics(log_ratio, rollouts.graded, rollouts.group_index, self.eps_low, self.eps_high)
        return ObjectiveOutput(loss=-terms.sum() / rollouts.totals.groups, metrics=metrics)
