"""Default rewards of a task, or the user's own."""

import math
from collections.abc import Sequence

from stabledrl.errors import UserInputError
from stabledrl.protocols import RewardFunction


def resolve_rewards(
    default: RewardFunction, rewards: Sequence[RewardFunction] | None, weights: Sequence[float] | None
) -> tuple[list[RewardFunction], list[float]]:
    """Takes the user's rewards and weights, or the task's own grader with weight 1.

    Args:
        default: The task's grader.
        rewards: The user's; None takes the default.
        weights: One per reward; None weighs all by 1.

    Returns:
        Rewards and weights, equally many.

    Raises:
        UserInputError: There is no reward, the numbers differ, or a weight is not finite.
    """
    chosen = [default] if rewards is None else list(rewards)
    factors = [1.0] * len(chosen) if weights is None else list(weights)
    if not chosen:
        raise UserInputError("rewards is empty: a task needs at least one")
    if len(chosen) != len(factors):
        raise UserInputError(f"reward_weights has {len(factors)} entries for {len(chosen)} rewards")
    if wrong := [factor for factor in factors if not math.isfinite(factor)]:
        raise UserInputError(f"reward_weights holds {wrong[0]}; every weight must be a finite number")
    return chosen, factors
