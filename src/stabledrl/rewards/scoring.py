"""Calls reward functions in TRL's convention and combines what they return."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stabledrl.errors import UserInputError
from stabledrl.grade import Grade, RewardFunction
from stabledrl.rewards.graded import GradedReward


class RewardError(RuntimeError):
    """A reward function raised; the message names it and the completions it was given."""


@dataclass(frozen=True, kw_only=True)
class ScoredCompletions:
    """What the rewards say of a batch of completions.

    Attributes:
        rewards: Weighted sum per completion; None if a reward with a weight other than 0 has no finite value.
        by_reward: Each reward's own values, by its name.
        grades: The first reward's verdicts.
    """

    rewards: list[float | None]
    by_reward: dict[str, list[float | None]]
    grades: list[Grade]


def score_completions(
    rewards: Sequence[RewardFunction],
    weights: Sequence[float],
    prompts: Sequence[Any],
    completions: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    completion_ids: Sequence[list[int]] | None = None,
) -> ScoredCompletions:
    """Scores completions with every reward; each sees the batch once.

    Args:
        rewards: At least one; the first is the grader that decides accuracy.
        weights: One factor per reward.
        prompts: N texts or lists of chat messages.
        completions: N texts.
        rows: N mappings of further columns; all have the same columns.
        completion_ids: N lists of token ids, for rewards that ask for them.

    Returns:
        Their judgement.

    Raises:
        UserInputError: A reward returns a list of another length, or something else than numbers and None.
        RewardError: A reward raises.
    """
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    if completion_ids is not None:
        columns["completion_ids"] = list(completion_ids)
    by_reward: dict[str, list[float | None]] = {}
    grades: list[Grade] = []
    for index, reward in enumerate(rewards):
        name = _unique(reward_name(reward), by_reward)
        if isinstance(reward, GradedReward):
            verdicts = _grade(reward, name, completions, rows)
            values: list[Any] = [verdict.score for verdict in verdicts]
        else:
            values = _call(reward, name, prompts, completions, columns)
            verdicts = [_from_score(value, name) for value in values]
        by_reward[name] = [_finite(value, name) for value in values]
        if index == 0:
            grades = verdicts
    combined = [_combine(weights, values) for values in zip(*by_reward.values())]
    return ScoredCompletions(rewards=combined, by_reward=by_reward, grades=grades)


def reward_name(reward: RewardFunction) -> str:
    """The name a reward goes by: a function's own, or its class's."""
    return getattr(reward, "__name__", type(reward).__name__)


def required_columns(reward: RewardFunction) -> set[str]:
    """Columns that a reward cannot do without: its keyword parameters without default."""
    function: Callable[..., Any] = reward.grade if isinstance(reward, GradedReward) else reward
    given = {"self", "prompts", "completions", "completion", "completion_ids"}
    return {
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in given
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


def _grade(
    reward: GradedReward, name: str, completions: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> list[Grade]:
    verdicts = []
    for index, (completion, row) in enumerate(zip(completions, rows)):
        try:
            verdicts.append(reward.grade(completion, **row))
        except UserInputError:
            raise
        except Exception as error:
            raise RewardError(f"reward {name} raised {error!r} on completion {index}: {completion[:200]!r}") from error
    return verdicts


def _call(
    reward: RewardFunction,
    name: str,
    prompts: Sequence[Any],
    completions: Sequence[str],
    columns: Mapping[str, list[Any]],
) -> list[Any]:
    conversational = bool(prompts) and not isinstance(prompts[0], str)
    shown = [[{"role": "assistant", "content": text}] for text in completions] if conversational else list(completions)
    parameters = inspect.signature(reward).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    passed = {key: values for key, values in columns.items() if takes_all or key in parameters}
    if takes_all or "prompts" in parameters:
        passed["prompts"] = list(prompts)
    try:
        values = list(reward(completions=shown, **passed))
    except Exception as error:
        first = completions[0][:200] if completions else ""
        raise RewardError(
            f"reward {name} raised {error!r} on a batch of {len(completions)} completions, the first: {first!r}"
        ) from error
    if len(values) != len(completions):
        raise UserInputError(f"reward {name} returned {len(values)} values for {len(completions)} completions")
    return values


def _from_score(value: Any, name: str) -> Grade:
    score = _finite(value, name)
    if score is None:
        return Grade(correct=None, score=None, answer=None, reason=f"{name} gave {value}")
    return Grade(correct=score >= 1, score=score, answer=None, reason=f"{name} {score:.3g}")


def _finite(value: Any, name: str) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise UserInputError(f"reward {name} returned {value!r}; expected a number or None") from error
    return number if math.isfinite(number) else None


def _combine(weights: Sequence[float], values: Sequence[float | None]) -> float | None:
    total = 0.0
    for weight, value in zip(weights, values):
        if weight == 0:
            continue
        if value is None:
            return None
        total += weight * value
    return total


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique
