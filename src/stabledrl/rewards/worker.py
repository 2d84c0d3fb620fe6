"""A process that does one call after the other: our end of it, and what runs there. Imports no torch."""

import contextlib
import multiprocessing
import pickle
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

START_LIMIT = 120.0
"""Seconds a worker may take to start."""
GRACE = 5.0
"""Seconds after its deadline when a worker ends by itself, should nobody be left to kill it."""

_CODE = "import sys; sys.path[:] = {path!r}; from stabledrl.rewards.worker import serve; serve({descriptor})"


class WorkerProcess:
    """Our end.

    Args:
        first_message: What `serve` gets first, pickled.

    Attributes:
        ready: Whether it has answered that.
        call: Which call it is busy with, if any.
        expires: On the monotonic clock, when it has to be ready or done.
    """

    def __init__(self, first_message: bytes) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        code = _CODE.format(path=sys.path, descriptor=theirs.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            process_group=0,  # Ctrl-C in the terminal goes to the run alone.
        )
        theirs.close()
        self.ready = False
        self.call: int | None = None
        self.expires = time.monotonic() + START_LIMIT
        self.send(first_message)

    def send(self, message: bytes) -> bool:
        """Whether the message went out; it cannot if the process is dead."""
        try:
            self.connection.send_bytes(message)
        except OSError:
            return False
        return True

    def end(self) -> str:
        """Kills the process, if it lives, and tells how it ended."""
        self.process.kill()
        code = self.process.wait()
        self.connection.close()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def serve(descriptor: int) -> None:
    """Answers calls until the pool is gone.

    Args:
        descriptor: The worker's end of a `multiprocessing.Pipe`. First comes (start_up, memory_limit), then for each
            call (function, arguments, deadline); every message gets one answer, ("done", value) or ("raised",
            summary, traceback).
    """
    # Whoever signals the whole run means its main process, which decides what becomes of the workers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(_answer(_prepare, connection.recv_bytes()))
        while True:
            connection.send_bytes(_answer(_work, connection.recv_bytes()))


def _answer(handle: Any, message: bytes) -> bytes:
    try:
        return pickle.dumps(("done", handle(message)))
    except BaseException as error:  # Whatever a call does, SystemExit too, the next one is served.
        summary = f"{type(error).__name__}: {error}".partition("\n")[0][:500]
        return pickle.dumps(("raised", summary, "".join(traceback.format_exception(error))))


def _prepare(message: bytes) -> None:
    start_up, memory_limit = pickle.loads(message)
    if memory_limit is not None:
        with contextlib.suppress(ValueError):  # Some systems know no such limit.
            resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    with _alarm(START_LIMIT):
        start_up()


def _work(message: bytes) -> Any:
    function, arguments, deadline = pickle.loads(message)
    with _alarm(deadline):
        return function(*arguments)


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Ends this process some time after a deadline, even inside a long computation in C."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + GRACE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
