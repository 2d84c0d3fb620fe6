"""Threads that stand for processes: what is shared and exchanged can be tested without starting any."""

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from stabledrl.processes import Processes


class WaitsForEverError(Exception):
    """A process waits for one that has ended."""


def in_threads(count: int, work: Callable[[Processes], Any]) -> list[Any]:
    """Runs `work` once per process, all at the same time.

    Returns:
        By rank what each returned, or the exception it raised.
    """
    news = threading.Condition()
    rounds: defaultdict[int, dict[int, Any]] = defaultdict(dict)
    ended: set[int] = set()
    results: list[Any] = [None] * count

    def run(rank: int) -> None:
        made = 0

        def exchange(own: Any) -> list[Any]:
            nonlocal made
            with news:
                told, made = rounds[made], made + 1
                told[rank] = own
                news.notify_all()
                news.wait_for(lambda: len(told) == count or ended - told.keys())
                if len(told) < count:
                    raise WaitsForEverError
                return [told[other] for other in range(count)]

        try:
            results[rank] = work(Processes(rank=rank, count=count, exchange=exchange))
        except Exception as error:
            results[rank] = error
        with news:
            ended.add(rank)
            news.notify_all()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
