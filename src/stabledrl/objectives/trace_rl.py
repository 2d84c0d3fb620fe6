"""TraceRL: PPO over the tokens of a rollout, each scored in the state it was decided in (arXiv 2509.06949)."""

import math

import torch
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.objectives.importance import check_eps
from stabledrl.objectives.kl import kl_penalty
from stabledrl.objectives.token_ratio import token_ratio_metrics, token_surrogate
from stabledrl.protocols import Need, Objective
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch

LOG_RATIO_LIMIT = 10.0
"""Largest magnitude of a token's log-ratio before exp."""


class TraceRL(Objective):
    """Trajectory-aware reinforcement learning (arXiv 2509.06949) without its value model:

        loss = -(1 / rows) * sum_i (1 / L_i) * sum_t [ min(rho_it A_i, clip(rho_it) A_i) - kl_old * k3_it ]
        rho_it = exp(clamp(new_it - old_it, -10, 10)),  k3 = 1 / rho - 1 + log rho

    t runs over the L_i tokens of completion i, and new_it and old_it are the token's log-probabilities under the policy
    that is trained and the one that sampled. They are log-probabilities of the rollout's own decisions where the
    likelihood estimator masks by `trace`; with other shared masks the loss is defined as well, and is PPO over tokens.
    k3 draws the policy towards the one that sampled, so its gradient is 0 at the first update of a rollout.

    What the paper or its release leaves open, and what is taken here:

    - The mean is over a completion's tokens (L_i) and then over completions, so that every completion counts alike
      however many steps it took; the release's full-attention script takes it over the tokens of a step, then steps. k3
      is averaged in the same way.
    - The limit of 10 on log-ratios holds for the ratio and for k3; the gradient beyond is 0.
    - The advantage is the rollout's; the release standardises rewards within the prompt's group. The value model, which
      spreads it over the steps, is not part of this objective.

    Completions without a reward contribute 0, to the penalty too, but count in the mean.

    Args:
        eps_low: The ratio's clip below 1; None, or 1 and above, for no lower bound.
        eps_high: The ratio's clip above 1; None for no upper bound.
        kl_old: Coefficient of the divergence from the policy that sampled, k3.

    Raises:
        UserInputError: A value is out of range.
    """

    needs: frozenset[Need] = frozenset({"elbo", "shared_masks", "step_map"})
    uses_ratio = True

    def __init__(self, eps_low: float | None = 0.2, eps_high: float | None = 0.2, kl_old: float = 0.01) -> None:
        check_eps(eps_low, eps_high)
        if not 0 <= kl_old < math.inf:
            raise UserInputError(f"kl_old {kl_old} must be a finite number of at least 0")
        self.eps_low = eps_low
        self.eps_high = eps_high
        self.kl_old = kl_old

    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        """Computes the batch's share of the update's loss.

        Args:
            current: Estimate under the policy being trained, with gradient.
            rollouts: The same rows' rollouts, their old estimate on the same masks.
            group_log_normalizer: Has no effect, rows do not depend on each other.

        Returns:
            Loss, the metrics of `token_ratio_metrics`, and `kl_old`: the mean of k3 over tokens, then completions.
        """
        gain = token_surrogate(current, rollouts, self.eps_low, self.eps_high, limit=LOG_RATIO_LIMIT)
        counted = current.scored.any(dim=1) & rollouts.graded[:, None]
        # Left out before exp, not multiplied by 0: an ungraded row must not decide whether the loss is finite.
        log_ratio = torch.where(counted, current.token_elbo - rollouts.old.token_elbo, 0.0)
        log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        divergence = kl_penalty(log_ratio, torch.zeros_like(log_ratio), "k3")
        lengths = rollouts.sequences.lengths
        loss = -((gain - self.kl_old * divergence).sum(dim=1) / lengths).sum() / rollouts.totals.rows
        metrics = token_ratio_metrics(current, rollouts, self.eps_low, self.eps_high)
        metrics["kl_old"] = (divergence.detach().sum(dim=1) / lengths).mean()
        return ObjectiveOutput(loss=loss, metrics=metrics)
