"""Calls with a deadline, in processes that can be killed.

`concurrent.futures` cannot kill one process of a pool, and `multiprocessing` imports the main script, and with it
torch, into every process it spawns. These workers are plain subprocesses: they start in a fraction of a second from any
thread, share no locks or semaphores with the run, and end by themselves once it is gone.
"""

import functools
import os
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Literal

from stabledrl.errors import UserInputError
from stabledrl.rewards.worker import START_LIMIT, WorkerProcess

_MOST_FAILED_STARTS = 3  # In a row, times the number of workers.


class WorkerStartError(RuntimeError):
    """Workers cannot start; the message says why, in one line.

    Args:
        message: The message.
        details: Traceback from the worker, if it raised.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a call.

    Attributes:
        value: What it returned.
        failure: Why it returned nothing: it took too long, its process died, or it raised; None if it returned.
        reason: The failure in a few words.
        traceback: Of the exception, if it raised.
    """

    value: Any = None
    failure: Literal["overdue", "died", "raised"] | None = None
    reason: str = ""
    traceback: str = ""


class WorkerPool:
    """A fixed number of workers, started when first needed, reused, and replaced when they are killed or die.

    May be used from several threads, which take turns, and in forked processes, which get workers of their own.

    Args:
        size: Number of workers.
        start_up: What every worker does first, such as slow imports; no deadline counts it. It is pickled.
        memory_limit: Bytes of address space a worker may take; a call that needs more raises `MemoryError`.
    """

    def __init__(self, size: int, start_up: Callable[[], object], memory_limit: int | None = None) -> None:
        self.size = size
        self._first_message = pickle.dumps((start_up, memory_limit))
        self._begin()

    def warm_up(self) -> None:
        """Starts the workers, without waiting for them."""
        with self._turn():
            self._fill()

    def run(
        self,
        function: Callable[..., Any],
        calls: Sequence[tuple[Any, ...]],
        *,
        deadline: float,
        batch_deadline: float = float("inf"),
    ) -> list[Outcome]:
        """Calls a function many times, in parallel.

        Args:
            function: It is pickled, as are its arguments and results.
            calls: Positional arguments of each call.
            deadline: Seconds a call may take before its worker is killed.
            batch_deadline: Seconds after which calls that have not finished count as overdue.

        Returns:
            An outcome per call.

        Raises:
            WorkerStartError: Workers cannot start.
        """
        with self._turn():
            batch = _Batch([pickle.dumps((function, call, deadline)) for call in calls], deadline, batch_deadline)
            try:
                while batch.unfinished():
                    self._fill()
                    self._hand_out(batch)
                    self._collect(batch)
            finally:
                for worker in [worker for worker in self._workers if worker.call is not None]:
                    self._remove(worker)
            if calls:
                self._fill()
            return batch.finish()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._failed_starts = 0
        self._workers: list[WorkerProcess] = []
        weakref.finalize(self, _end_all, self._workers, self._owner)

    def _turn(self) -> threading.Lock:
        if self._owner != os.getpid():  # Forked: the workers are the parent's, the lock may be held by a lost thread.
            self._begin()
        return self._lock

    def _fill(self) -> None:
        """Brings the workers to their number. Those that died idle are replaced; a busy one's death is its call's."""
        idle = [worker for worker in self._workers if worker.ready and worker.call is None]
        for worker in [worker for worker in idle if worker.process.poll() is not None]:
            self._remove(worker)
        while len(self._workers) < self.size:
            self._workers.append(WorkerProcess(self._first_message))

    def _remove(self, worker: WorkerProcess) -> str:
        self._workers.remove(worker)
        return worker.end()

    def _hand_out(self, batch: "_Batch") -> None:
        for worker in self._workers:
            if worker.ready and worker.call is None and batch.pending and worker.send(batch.messages[batch.pending[0]]):
                worker.call = batch.pending.popleft()
                worker.expires = time.monotonic() + batch.deadline

    def _collect(self, batch: "_Batch") -> None:
        """Waits until something happens: an answer, a death, a deadline."""
        busy = {worker.connection: worker for worker in self._workers if worker.call is not None or not worker.ready}
        expires = min([batch.expires, *(worker.expires for worker in busy.values())])
        answered = wait(list(busy), max(0.0, expires - time.monotonic())) if busy else []
        for connection in answered:
            self._receive(busy.pop(connection), batch)  # type: ignore[call-overload]
        now = time.monotonic()
        for worker in [worker for worker in busy.values() if worker.expires <= now]:
            self._remove(worker)
            if worker.call is None:
                self._count_failed_start(f"not ready after {START_LIMIT:g} s")
            else:
                reason = f"no verdict within {batch.deadline:g} s, its process was killed"
                batch.outcomes[worker.call] = Outcome(failure="overdue", reason=reason)

    def _receive(self, worker: WorkerProcess, batch: "_Batch") -> None:
        try:
            message = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            end = self._remove(worker)
            if worker.call is None:
                self._count_failed_start(f"ended with {end}")
            else:
                batch.outcomes[worker.call] = Outcome(failure="died", reason=f"its process died with {end}")
            return
        if worker.call is not None:
            batch.outcomes[worker.call] = _outcome(message)
        elif message[0] == "raised":
            self._remove(worker)
            raise WorkerStartError(f"its process cannot start, {message[1]}", message[2])
        worker.ready, worker.call, self._failed_starts = True, None, 0

    def _count_failed_start(self, how: str) -> None:
        self._failed_starts += 1
        if self._failed_starts >= _MOST_FAILED_STARTS * self.size:
            raise WorkerStartError(f"{self._failed_starts} processes in a row did not start, the last {how}")


class _Batch:
    """The calls of one `run` and what has become of them."""

    def __init__(self, messages: list[bytes], deadline: float, batch_deadline: float) -> None:
        self.messages = messages
        self.deadline = deadline
        self.batch_deadline = batch_deadline
        self.expires = time.monotonic() + batch_deadline
        self.pending = deque(range(len(messages)))
        self.outcomes: dict[int, Outcome] = {}

    def unfinished(self) -> bool:
        return len(self.outcomes) < len(self.messages) and time.monotonic() < self.expires

    def finish(self) -> list[Outcome]:
        late = Outcome(failure="overdue", reason=f"its batch took longer than {self.batch_deadline:g} s")
        return [self.outcomes.get(index, late) for index in range(len(self.messages))]


def _outcome(message: tuple[Any, ...]) -> Outcome:
    if message[0] == "done":
        return Outcome(value=message[1])
    return Outcome(failure="raised", reason=message[1], traceback=message[2])


def _end_all(workers: list[WorkerProcess], owner: int) -> None:
    if owner == os.getpid():
        while workers:
            workers.pop().end()


@functools.cache
def shared_pool(size: int, start_up: Callable[[], object], memory_limit: int | None = None) -> WorkerPool:
    """The one pool of these settings in this process."""
    return WorkerPool(size, start_up, memory_limit)


def check_limits(deadline: float, batch_deadline: float, workers: int) -> None:
    """Checks what a user may set of a pool.

    Raises:
        UserInputError: A value is out of range.
    """
    for name, seconds in (("deadline", deadline), ("batch_deadline", batch_deadline)):
        if not 0 < seconds < float("inf"):
            raise UserInputError(f"{name} {seconds} must be a number of seconds above 0")
    if workers < 1:
        raise UserInputError(f"workers {workers} must be at least 1")
