"""Scores a batch of completions with every reward and combines what they say."""

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from stabledrl.errors import UserInputError
from stabledrl.grade import Grade, RewardFunction
from stabledrl.rewards.calling import as_grade, call_reward, check_values, finite, settle
from stabledrl.rewards.graded import RewardError
from stabledrl.rewards.signatures import RESERVED_COLUMNS, grade_method, required_columns, reward_name

__all__ = [
    "RESERVED_COLUMNS",
    "RewardError",
    "ScoredCompletions",
    "grade_method",
    "required_columns",
    "reward_name",
    "score_completions",
    "warm_up",
]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ScoredCompletions:
    """What the rewards say of a batch of completions.

    Attributes:
        rewards: Weighted sum per completion; None if a reward with a weight other than 0 has no finite value.
        by_reward: Each reward's own values, by its name.
        grades: The first reward's verdicts; where another reward is why there is no sum, the reason says so too.
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
    """Scores completions with every reward; each sees the batch once, coroutine functions side by side.

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
        RewardError: A reward raises. The sample and the traceback are logged.
    """
    if len(weights) != len(rewards):
        raise UserInputError(f"reward_weights has {len(weights)} entries for {len(rewards)} rewards")
    names = _unique(reward_name(reward) for reward in rewards)
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ()) if name not in RESERVED_COLUMNS}
    if completion_ids is not None:
        columns["completion_ids"] = list(completion_ids)
    conversational = bool(prompts) and not isinstance(prompts[0], str)
    shown = [[{"role": "assistant", "content": text}] for text in completions] if conversational else list(completions)

    def call(reward: RewardFunction) -> Any:
        return call_reward(reward, prompts, shown, columns)

    verdicts: list[list[Grade]] = []
    for name, values in zip(names, _call_all(rewards, names, call, completions)):
        verdicts.append([as_grade(value, name) for value in check_values(values, name, len(completions))])
    by_reward = {
        name: [finite(verdict.score, name) for verdict in own] for name, own in zip(names, verdicts, strict=True)
    }
    combined = [_combine(weights, values) for values in zip(*by_reward.values())]
    grades = [_with_reasons(own, names, weights) for own in zip(*verdicts)]
    return ScoredCompletions(rewards=combined, by_reward=by_reward, grades=grades)


def warm_up(rewards: Iterable[RewardFunction]) -> None:
    """Begins what makes the first batch slow, such as starting processes, without waiting for it."""
    for reward in rewards:
        prepare = getattr(reward, "warm_up", None)
        if prepare is not None:
            prepare()


def _call_all(
    rewards: Sequence[RewardFunction],
    names: Sequence[str],
    call: Callable[[RewardFunction], Any],
    completions: Sequence[str],
) -> list[Any]:
    """The results of all rewards, those of coroutine functions awaited."""
    results: list[Any] = []
    try:
        for reward, name in zip(rewards, names):
            try:
                results.append(call(reward))
            except (Exception, SystemExit) as error:  # a reward that calls exit() must not end the run in silence
                _fail(error, name, completions)
    except BaseException:
        for result in filter(inspect.iscoroutine, results):
            result.close()
        raise
    waiting = [index for index, result in enumerate(results) if inspect.isawaitable(result)]
    for index, result in zip(waiting, settle([results[index] for index in waiting])):
        if isinstance(result, BaseException):
            _fail(result, names[index], completions)
        results[index] = result
    return results


def _fail(error: BaseException, name: str, completions: Sequence[str]) -> NoReturn:
    """Logs the sample and the traceback of what a reward raised and stops; a user's mistake stays what it is."""
    if isinstance(error, UserInputError):
        raise error
    if isinstance(error, RewardError):
        _logger.error("%s\n%s", error, error.details)
        raise error
    samples = f"samples 0 to {len(completions) - 1}, the first"
    failure = RewardError.of(name, error, samples, completions[0] if completions else "")
    _logger.error("%s\n%s", failure, failure.details)
    raise failure from error


def _with_reasons(verdicts: Sequence[Grade], names: Sequence[str], weights: Sequence[float]) -> Grade:
    """The first verdict, with the reasons of further rewards that leave the completion without a sum."""
    first = verdicts[0]
    missing = [
        f"{name}: {verdict.reason}"
        for verdict, name, weight in zip(verdicts[1:], names[1:], weights[1:])
        if weight != 0 and (verdict.score is None or not math.isfinite(verdict.score))
    ]
    return replace(first, reason="; ".join([first.reason, *missing])) if missing else first


def _combine(weights: Sequence[float], values: Sequence[float | None]) -> float | None:
    total = 0.0
    for weight, value in zip(weights, values):
        if weight == 0:
            continue
        if value is None:
            return None
        total += weight * value
    return total if math.isfinite(total) else None


def _unique(names: Iterable[str]) -> list[str]:
    """The names, numbered where one occurs again."""
    taken: list[str] = []
    for name in names:
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        taken.append(unique)
    return taken
