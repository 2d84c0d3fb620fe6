"""Coroutine functions as rewards, from wherever they are called."""

import asyncio
import functools
import threading
import time
import warnings
from typing import Any

import pytest
from tests.rewards import hostile

from stabledrl.rewards import RewardError, ScoredCompletions, score_completions

TEXTS = ["1", "2", "1"]


def score(*rewards: Any) -> ScoredCompletions:
    return score_completions(rewards, [1.0] * len(rewards), ["p"] * 3, TEXTS, [{"gold": "1"}] * 3)


async def slow(completions: list[str], **columns: Any) -> list[float]:
    await asyncio.sleep(0.3)
    return [0.5] * len(completions)


async def broken(completions: list[str]) -> list[float]:
    await asyncio.sleep(0)
    raise LookupError("no answer from the judge")


class Judge:
    """A client that belongs to the event loop it was first used in."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.threads: set[int] = set()

    async def __call__(self, completions: list[str], gold: list[str]) -> list[float]:
        self.loop = self.loop or asyncio.get_running_loop()
        self.threads.add(threading.get_ident())
        assert self.loop is asyncio.get_running_loop()
        return [float(text == own) for text, own in zip(completions, gold)]


def test_coroutine_functions_and_plain_ones_mix() -> None:
    scored = score(hostile.later, hostile.length, functools.partial(hostile.later), Judge())
    assert scored.by_reward == {
        "later": [1.0, 0.0, 1.0],
        "length": [1.0, 1.0, 1.0],
        "later_2": [1.0, 0.0, 1.0],
        "Judge": [1.0, 0.0, 1.0],
    }
    assert [grade.correct for grade in scored.grades] == [True, False, True]


def test_coroutine_functions_run_side_by_side() -> None:
    started = time.perf_counter()
    assert score(*[slow] * 6).rewards == [3.0] * 3
    assert time.perf_counter() - started < 1.5


def test_clients_live_on_from_batch_to_batch_outside_of_the_main_thread() -> None:
    judge = Judge()
    for _ in range(3):
        assert score(judge).rewards == [1.0, 0.0, 1.0]
    assert judge.threads.isdisjoint({threading.get_ident()})
    assert len(judge.threads) == 1


def test_they_run_inside_a_running_loop_and_in_another_thread() -> None:
    async def inside() -> ScoredCompletions:
        return score(hostile.later)

    assert asyncio.run(inside()).rewards == [1.0, 0.0, 1.0]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(inside()).rewards))
    thread.start()
    thread.join()
    assert found == [[1.0, 0.0, 1.0]]


def test_what_a_coroutine_raises_is_told_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RewardError, match=r"reward broken raised LookupError\('no answer.*'1'; at .*:\d+, in broken"):
        score(slow, broken)
    assert "no answer from the judge" in caplog.text


def test_a_coroutine_that_is_not_needed_any_more_is_closed() -> None:
    def fails(completions: list[str]) -> list[float]:
        raise LookupError

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RewardError, match="fails"):
            score(hostile.later, fails)
