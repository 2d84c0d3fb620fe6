"""Noise on importance ratios: the stress test under which objectives are compared (arXiv 2603.06743).

The paper inflates the variance of the importance weights and does not publish how; here the law is stated. A number n
is added to a completion's log-ratio, drawn anew at every optimizer step and the same for whatever asks within one. For
objectives with a ratio per token, n is added to the log-ratio of each of the completion's tokens, which is the same
thing for a length-normalised ratio of the whole completion. Rewards, the current estimate and so the gradient of every
log-likelihood stay as they are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.protocols import GroupCoupledObjective, Objective
from stabledrl.randomness import Purpose, fold, uniforms
from stabledrl.types import LikelihoodEstimate, ObjectiveOutput, RolloutBatch

NoiseLaw = Literal["gaussian", "student_t"]


@dataclass(frozen=True, kw_only=True)
class LogRatioNoise:
    """A law of noise on log-ratios.

    Attributes:
        law: `gaussian`, or `student_t` for heavy tails.
        mean: Added to every draw: below 0 the ratios shrink, as those of a policy that has moved away.
        scale: Standard deviation of the Gaussian; factor of the Student-t variable.
        degrees_of_freedom: Of the Student-t law; 1 is Cauchy, many is Gaussian.
        share: Probability that a completion (or group) gets noise at all.
        shared_by_group: One draw for all completions of a prompt.
        seed: Seed of the draws.

    Raises:
        UserInputError: A value is out of range.
    """

    law: NoiseLaw = "gaussian"
    mean: float = 0.0
    scale: float = 3.0
    degrees_of_freedom: int = 3
    share: float = 1.0
    shared_by_group: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.law not in get_args(NoiseLaw):
            raise UserInputError(f"law {self.law!r} is not one of {', '.join(get_args(NoiseLaw))}")
        if not math.isfinite(self.mean):
            raise UserInputError(f"mean {self.mean} must be finite")
        if not 0 <= self.scale < math.inf:
            raise UserInputError(f"scale {self.scale} must be finite and at least 0")
        if self.degrees_of_freedom < 1:
            raise UserInputError(f"degrees_of_freedom {self.degrees_of_freedom} must be at least 1")
        if not 0 < self.share <= 1:
            raise UserInputError(f"share {self.share} must be above 0 and at most 1")

    def draw(self, rollouts: RolloutBatch, step: int) -> Tensor:
        """Draws the noise of an optimizer step.

        Args:
            rollouts: N rows.
            step: Optimizer steps made so far.

        Returns:
            (N,) float32; 0 for rows that get none. It does not depend on which rows are asked for together.
        """
        # Prompts have no key of their own; within a step the number of its group tells a prompt from the others.
        identity = rollouts.group_index if self.shared_by_group else rollouts.sequences.row_keys
        normals = self.degrees_of_freedom if self.law == "student_t" else 0
        # Half a unit of the last bit keeps the quantile of 0 finite.
        u = uniforms(fold(identity, self.seed), Purpose.STRESS, step, 2 + normals) + 2.0**-54
        noise = torch.special.ndtri(u[:, 1])
        if normals:
            noise = noise * (normals / torch.special.ndtri(u[:, 2:]).square().sum(dim=1)).sqrt()
        return torch.where(u[:, 0] < self.share, self.mean + self.scale * noise, 0.0).float()


class StressedObjective(Objective):
    """An objective whose importance ratios are inflated by noise.

    Args:
        objective: One that uses a ratio.
        noise: The law of the noise.
        step: Tells the optimizer steps made so far.
        from_step: Optimizer steps that are left alone.

    Raises:
        UserInputError: The objective has no ratio, or `from_step` is negative.
    """

    def __init__(
        self, objective: Objective, noise: LogRatioNoise, step: Callable[[], int], *, from_step: int = 0
    ) -> None:
        if not objective.uses_ratio:
            raise UserInputError(
                f"{type(objective).__name__} uses no importance ratio, so there is none to inflate; the stress test "
                f"needs an objective that does, such as StableDRL or GRPO"
            )
        if from_step < 0:
            raise UserInputError(f"from_step {from_step} must be at least 0")
        self.objective = objective
        self.noise = noise
        self.step = step
        self.from_step = from_step
        self.needs = objective.needs
        self.uses_ratio = True

    def stressed(self, rollouts: RolloutBatch) -> RolloutBatch:
        """The rollouts with their old estimates lowered by the noise: log-ratios are differences from them."""
        step = self.step()
        if step < self.from_step:
            return rollouts
        noise = self.noise.draw(rollouts, step).to(rollouts.old.elbo.dtype)
        old, tokens = rollouts.old, rollouts.sequences.completion_mask
        return replace(
            rollouts,
            old=replace(
                old,
                elbo=old.elbo - noise,
                token_elbo=torch.where(tokens, old.token_elbo - noise[:, None], old.token_elbo),
                token_log_probs=torch.where(
                    old.scored, old.token_log_probs - noise[:, None, None], old.token_log_probs
                ),
            ),
        )

    @override
    def __call__(
        self, current: LikelihoodEstimate, rollouts: RolloutBatch, *, group_log_normalizer: Tensor | None = None
    ) -> ObjectiveOutput:
        return self.objective(current, self.stressed(rollouts), group_log_normalizer=group_log_normalizer)


class StressedGroupObjective(StressedObjective, GroupCoupledObjective):
    """The same for an objective whose rows depend on their group."""

    @override
    def log_normalizers(self, current: LikelihoodEstimate | None, rollouts: RolloutBatch) -> Tensor:
        assert isinstance(self.objective, GroupCoupledObjective)
        return self.objective.log_normalizers(current, self.stressed(rollouts))


def stress(
    objective: Objective, noise: LogRatioNoise, step: Callable[[], int], *, from_step: int = 0
) -> StressedObjective:
    """Wraps an objective; see `StressedObjective`."""
    kind = StressedGroupObjective if isinstance(objective, GroupCoupledObjective) else StressedObjective
    return kind(objective, noise, step, from_step=from_step)
