"""GRPO with the ELBO in place of the likelihood."""

import torch
from torch import Tensor
from typing_extensions import override

from stabledrl.objectives.importance import check_eps, clamp_log_ratio, clip_log_ratio, ratio_metrics
from stabledrl.protocols import Need, Objective
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch


class GRPO(Objective):
    """GRPO (arXiv 2402.03300, equation 3) at sequence level, on estimated likelihoods.

        J = mean over completions of min(rho A, clamp(rho, 1 - eps_low, 1 + eps_high) A)

    The gradient goes through the ratio rho, which is not bounded where A < 0 and rho is large. The mean is over all
    completions of the update; those without a reward count with advantage 0.

    Args:
        eps_low: Distance of the clip's lower bound from 1; None, or 1 and more, is no lower bound.
        eps_high: Distance of the clip's upper bound from 1; None is no upper bound.

    Raises:
        UserInputError: A bound is not positive.
    """

    uses_ratio = True
    needs: frozenset[Need] = frozenset({"elbo"})

    def __init__(self, eps_low: float | None = 0.2, eps_high: float | None = 0.2) -> None:
        check_eps(eps_low, eps_high)
        self.eps_low, self.eps_high = eps_low, eps_high

    @override
    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        graded = rollouts.graded
        log_ratio = clamp_log_ratio(current.elbo - rollouts.old.elbo)[graded]
        advantages = rollouts.advantages[graded]
        ratio = log_ratio.exp()
        clipped = clip_log_ratio(log_ratio, self.eps_low, self.eps_high).exp()
        gain = torch.minimum(ratio * advantages, clipped * advantages)
        raw = (current.elbo - rollouts.old.elbo).detach()
        metrics = ratio_metrics(raw, rollouts.group_index, self.eps_low, self.eps_high)
        return ObjectiveOutput(loss=-gain.sum() / rollouts.totals.rows, metrics=metrics)
