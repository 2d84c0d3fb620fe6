"""StableDRL: unconditional clipping and self-normalisation."""

import torch
from torch import Tensor
from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.objectives.importance import (
    check_eps,
    clamp_log_ratio,
    clip_log_ratio,
    group_log_sum_exp,
    ratio_metrics,
)
from stabledrl.objectives.surrogate import Surrogate, sandwich, surrogate_needs
from stabledrl.protocols import GroupCoupledObjective
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch


class StableDRL(GroupCoupledObjective):
    r"""StableDRL (arXiv 2603.06743).

        grad J = E[ 1 / sum_i clip(rho_i) * sum_j clip(rho_j) * A_j * grad l_j ]

    over the completions of one prompt, with rho the ratio of estimated likelihoods, clip(rho) = clamp(rho, 1 - eps_low,
    1 + eps_high) whatever the sign of the advantage A, and l the log-likelihood surrogate. Ratios carry no gradient, so
    an update lies in the convex hull of the A_j grad l_j. The loss is the mean over prompts.

    The public release bounds the ratio by 5 from above alone (here: `eps_high=4.0`) and normalises over the rows that a
    process holds; here a weight is a share of its own prompt's group, however the group is split.

    Args:
        eps_low: Distance of the ratio's lower bound from 1; None, or 1 and more, is no lower bound.
        eps_high: Distance of the ratio's upper bound from 1; None is no upper bound.
        surrogate: `sandwich` (ELBO where A > 0, else omega EUBO + (1 - omega) ELBO) or `elbo`.
        omega: Share of the EUBO in the sandwich.
        clip: False drops the clip and nothing else.
        self_normalize: False divides by the group's size instead of its sum of ratios, and changes nothing else.

    Raises:
        UserInputError: A value is out of range.
    """

    uses_ratio = True

    def __init__(
        self,
        eps_low: float | None = None,
        eps_high: float | None = 5.0,
        surrogate: Surrogate = "sandwich",
        omega: float = 0.5,
        clip: bool = True,
        self_normalize: bool = True,
    ) -> None:
        check_eps(eps_low, eps_high)
        if not 0 <= omega <= 1:
            raise UserInputError(f"omega {omega} must lie between 0 and 1")
        self.eps_low, self.eps_high = eps_low, eps_high
        self.surrogate: Surrogate = surrogate
        self.omega = omega
        self.clip = clip
        self.self_normalize = self_normalize
        self.needs = surrogate_needs(surrogate)

    @override
    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        graded = rollouts.graded
        raw = (current.elbo - rollouts.old.elbo).detach()
        log_ratio = raw[graded]
        group_index, advantages = rollouts.group_index[graded], rollouts.advantages[graded]
        if group_log_normalizer is None:
            group_log_normalizer = self.log_normalizers(log_ratio, group_index, rollouts.totals.groups)
        weights = (self._log_weight(log_ratio) - group_log_normalizer[group_index]).exp()
        target = sandwich(current, rollouts.advantages, self.omega) if self.surrogate == "sandwich" else current.elbo
        loss = -(weights * advantages * target[graded]).sum() / rollouts.totals.groups
        bounds = (self.eps_low, self.eps_high) if self.clip else (None, None)
        return ObjectiveOutput(loss=loss, metrics=ratio_metrics(raw, rollouts.group_index, *bounds))

    @override
    def log_normalizers(self, log_ratio: Tensor, group_index: Tensor, num_groups: int) -> Tensor:
        """(G,) log of every group's sum of clipped ratios; of its size, where it is not self-normalised."""
        weight = self._log_weight(log_ratio)
        return group_log_sum_exp(weight if self.self_normalize else torch.zeros_like(weight), group_index, num_groups)

    def _log_weight(self, log_ratio: Tensor) -> Tensor:
        if not self.clip:
            return clamp_log_ratio(log_ratio)
        return clip_log_ratio(log_ratio, self.eps_low, self.eps_high)
