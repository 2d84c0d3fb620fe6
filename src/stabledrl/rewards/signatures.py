"""What a reward asks for, read from its signature."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from stabledrl.grade import Grade, RewardFunction

_ARGUMENTS = frozenset({"prompts", "completions", "completion_ids"})
RESERVED_COLUMNS = _ARGUMENTS | {"prompt", "completion"}
"""Columns that no reward gets, as in TRL: the data set's own prompt and completion, and names of the arguments."""


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
    reward = inspect.unwrap(reward)
    grade = grade_method(reward)
    parameters = _parameters(reward if grade is None else grade)
    # A grader's first parameter is the completion, whatever it is called.
    own = parameters if grade is None else parameters[1:]
    return {
        parameter.name
        for parameter in own
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    } - _ARGUMENTS


def accepted(function: Callable[..., Any], columns: Iterable[str]) -> list[str]:
    """Which of the columns a function takes by keyword."""
    parameters = _parameters(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return list(columns)
    named = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    return [name for name in columns if name in named]


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # Some built-in callables tell no signature: they get everything.
        return [inspect.Parameter("columns", inspect.Parameter.VAR_KEYWORD)]
