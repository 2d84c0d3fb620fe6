"""SPG: a policy gradient between a lower and an upper bound, without importance ratios (arXiv 2510.09541)."""

import torch
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.objectives.surrogate import sandwich
from stabledrl.protocols import Need, Objective
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch


class SPG(Objective):
    """The loss of SPG (arXiv 2510.09541, "SPG: Sandwiched Policy Gradient for Masked Diffusion Language Models"):

        loss = -(1 / sum_i L_i) * sum_i A_i L_i l_i
        l_i = ELBO_i where A_i > 0, else omega * EUBO_i + (1 - omega) * ELBO_i

    i runs over the completions of an update, L_i is the number of tokens of one, and both bounds are per token. So the
    mean is over tokens: L_i l_i estimates the log-likelihood of the whole completion.

    There is no importance ratio: rho is taken for 1 on all updates of a rollout. The gradient is the policy gradient of
    the bounds on the first update only, and nothing holds the policy back on the later ones.

    What paper and release leave to the configuration:

    - Masks are `block_random` with 2 draws, beta of the EUBO is 1.5: the estimator's. The bounds are then proxies.
    - A = r - mean of the group, as in the release: `center` in `stabledrl.advantages`. No KL term.
    - The release divides by the tokens that a device holds; here by those of the update.

    Completions without a reward contribute 0, but their tokens count in the divisor.

    Args:
        omega: Share of the EUBO for completions to be made less likely, in [0, 1]: the paper's SPG with mixture is .5,
            1 takes the EUBO alone and 0 the ELBO throughout.

    Raises:
        UserInputError: omega is out of range.
    """

    needs: frozenset[Need] = frozenset({"elbo", "eubo", "length_normalized"})
    uses_ratio = False

    def __init__(self, omega: float = 0.5) -> None:
        if not 0 <= omega <= 1:
            raise UserInputError(f"omega {omega} must lie between 0 and 1")
        self.omega = omega

    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        """Computes the batch's share of the update's loss.

        Args:
            current: Estimate under the policy being trained, with gradient.
            rollouts: The same rows' rollouts.
            group_log_normalizer: Has no effect, rows do not depend on each other.

        Returns:
            Loss and, over all rows, `log_likelihood_mean` (of the ELBO) and `bound_gap_mean` (EUBO - ELBO), per token.
        """
        assert current.eubo is not None, "checked against `needs` before training"
        log_likelihood = rollouts.sequences.lengths * sandwich(current, rollouts.advantages, self.omega)
        # Left out, not multiplied by 0: an ungraded row's estimate must not decide whether the loss is finite.
        terms = torch.where(rollouts.graded, rollouts.advantages * log_likelihood, 0.0)
        metrics = {
            "log_likelihood_mean": current.elbo.detach().mean(),
            "bound_gap_mean": (current.eubo - current.elbo).detach().mean(),
        }
        return ObjectiveOutput(loss=-terms.sum() / rollouts.totals.tokens, metrics=metrics)
