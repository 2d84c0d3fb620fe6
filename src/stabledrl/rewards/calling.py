"""Calls rewards in TRL's convention, coroutines too, and checks what they return."""

import asyncio
import functools
import math
import os
import threading
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from stabledrl.errors import UserInputError
from stabledrl.grade import Grade, RewardFunction
from stabledrl.rewards.graded import GradedReward, completion_text, grade_each
from stabledrl.rewards.signatures import accepted, grade_method, reward_name


def call_reward(
    reward: RewardFunction, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, list[Any]]
) -> Any:
    """Has a reward judge a batch.

    Args:
        reward: A grader, or a function, a coroutine function too.
        prompts: N texts or lists of chat messages.
        completions: N of the same kind.
        columns: N entries per further column; it gets those that it takes.

    Returns:
        Its verdicts or values, unchecked; a coroutine function's come as an awaitable.
    """
    if (grade := grade_method(reward)) is not None:
        texts = [completion_text(completion) for completion in completions]
        names = accepted(grade, columns)
        rows = [{name: columns[name][index] for name in names} for index in range(len(texts))]
        if isinstance(reward, GradedReward):
            return reward.grade_batch(texts, rows)
        return grade_each(grade, texts, rows, reward_name(reward))
    offered = {"prompts": list(prompts), "completions": list(completions), **columns}
    # A reward that wraps another has an `explain`, which tells more than its scores.
    function = getattr(reward, "explain", reward)
    return function(**{name: offered[name] for name in accepted(function, offered)})


def settle(awaitables: Sequence[Awaitable[Any]]) -> list[Any]:
    """Runs what coroutine functions began, side by side.

    All batches share an event loop, in a thread of its own: clients that a reward keeps stay usable, and the caller may
    itself be inside a running loop.

    Args:
        awaitables: What the functions returned.

    Returns:
        The result of each, or the exception it raised.
    """

    async def gather() -> list[Any]:
        return await asyncio.gather(*awaitables, return_exceptions=True)

    if not awaitables:
        return []
    future = asyncio.run_coroutine_threadsafe(gather(), _event_loop(os.getpid()))
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


@functools.cache
def _event_loop(process: int) -> asyncio.AbstractEventLoop:
    """The loop of this process; a fork has none of its parent's threads."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop


def check_values(values: Any, name: str, count: int) -> list[Any]:
    """The values of a reward as a list.

    Raises:
        UserInputError: They are no list, or one of another length.
    """
    if not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
        raise UserInputError(f"reward {name} returned a {type(values).__name__}; expected a list of {count}")
    if len(values) != count:
        raise UserInputError(f"reward {name} returned {len(values)} values for {count} completions")
    return list(values)


def as_grade(value: Any, name: str) -> Grade:
    """A value of a reward as a verdict, correct from 1 on.

    Raises:
        UserInputError: The value is neither a number, None nor a verdict.
    """
    if isinstance(value, Grade):
        return value
    score = finite(value, name)
    if score is None:
        return Grade(correct=None, score=None, answer=None, reason=f"{name} gave {value}")
    return Grade(correct=score >= 1, score=score, answer=None, reason=f"{name} {score:.3g}")


def finite(value: Any, name: str) -> float | None:
    """A number, or None where it is none or not finite.

    Raises:
        UserInputError: The value is neither a number nor None.
    """
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise UserInputError(f"reward {name} returned {value!r}; expected a number or None") from error
    return number if math.isfinite(number) else None
