"""Calls reward functions in TRL's convention and combines what they return."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stabledrl.errors import UserInputError
from stabledrl.grade import Grade, RewardFunction

RESERVED_COLUMNS = frozenset({"prompt", "completion", "prompts", "completions", "completion_ids"})
"""Columns that no reward gets, as in TRL: the data set's own prompt and completion, and names of the arguments."""


class RewardError(RuntimeError):
    """A reward function raised; the message names it and the samples it was given."""


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
    *,
    completion_ids: Sequence[list[int]] | None = None,
) -> ScoredCompletions:
    """Scores completions with every reward; each sees the batch once.

    Args:
        rewards: At least one; the first is the grader that decides accuracy.
        weights: One factor per reward.
        prompts: N texts or lists of chat messages.
        completions: N texts.
        rows: N mappings of further columns; all have the same columns. `RESERVED_COLUMNS` are left out.
        completion_ids: N lists of token ids, for rewards that ask for them.

    Returns:
        Their judgement.

    Raises:
        UserInputError: A reward returns a list of another length, or something else than numbers and None; or there
            are not as many weights as rewards.
        RewardError: A reward raises.
    """
    if len(weights) != len(rewards):
        raise UserInputError(f"reward_weights has {len(weights)} entries for {len(rewards)} rewards")
    names = [name for name in rows[0] if name not in RESERVED_COLUMNS] if rows else []
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in names}
    ids = {} if completion_ids is None else {"completion_ids": list(completion_ids)}
    by_reward: dict[str, list[float | None]] = {}
    grades: list[Grade] = []
    for index, reward in enumerate(rewards):
        name = _unique(reward_name(reward), by_reward)
        if (grade := grade_method(reward)) is not None:
            verdicts = _grade(grade, name, completions, columns)
            values: list[Any] = [verdict.score for verdict in verdicts]
        else:
            values = _call(reward, name, prompts, completions, {**columns, **ids})
            verdicts = [_from_score(value, name) for value in values]
        by_reward[name] = [_finite(value, name) for value in values]
        if index == 0:
            grades = verdicts
    combined = [_combine(weights, values) for values in zip(*by_reward.values())]
    return ScoredCompletions(rewards=combined, by_reward=by_reward, grades=grades)


def reward_name(reward: RewardFunction) -> str:
    """The name a reward goes by: a function's own, or its class's."""
    if isinstance(reward, functools.partial):
        return reward_name(reward.func)
    name: str = getattr(reward, "__name__", type(reward).__name__)
    return name


def grade_method(reward: RewardFunction) -> Callable[..., Grade] | None:
    """The reward's `grade`, by which it explains its verdicts; None if it has none."""
    method: Callable[..., Grade] | None = getattr(reward, "grade", None)
    return method


def required_columns(reward: RewardFunction) -> set[str]:
    """Columns that a reward cannot do without: its keyword parameters without default."""
    grade = grade_method(reward)
    parameters = list(_parameters(reward if grade is None else grade))
    # A grader's first parameter is the completion, whatever it is called.
    own = parameters if grade is None else parameters[1:]
    return {
        parameter.name
        for parameter in own
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    } - {"prompts", "completions", "completion_ids"}


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # Some built-in callables tell no signature: they get everything.
        return [inspect.Parameter("columns", inspect.Parameter.VAR_KEYWORD)]


def _accepted(function: Callable[..., Any], columns: Mapping[str, Any]) -> list[str]:
    """Which of the columns a function takes by keyword."""
    parameters = _parameters(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return list(columns)
    named = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return [name for name in columns if name in named]


def _grade(
    grade: Callable[..., Grade], name: str, completions: Sequence[str], columns: Mapping[str, list[Any]]
) -> list[Grade]:
    passed = _accepted(grade, columns)
    verdicts = []
    for index, completion in enumerate(completions):
        try:
            verdicts.append(grade(completion, **{column: columns[column][index] for column in passed}))
        except UserInputError:
            raise
        except Exception as error:
            raise RewardError(f"reward {name} raised {error!r} on sample {index}: {completion[:200]!r}") from error
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
    offered: dict[str, list[Any]] = {"prompts": list(prompts), "completions": shown, **columns}
    try:
        values = reward(**{column: offered[column] for column in _accepted(reward, offered)})
    except Exception as error:
        first = completions[0][:200] if completions else ""
        raise RewardError(
            f"reward {name} raised {error!r} on samples 0 to {len(completions) - 1}, the first: {first!r}"
        ) from error
    if not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        raise UserInputError(f"reward {name} returned a {type(values).__name__}; expected a list of {len(completions)}")
    if len(values) != len(completions):
        raise UserInputError(f"reward {name} returned {len(values)} values for {len(completions)} completions")
    return list(values)


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
    return total if math.isfinite(total) else None


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique
