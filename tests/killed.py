"""Work in a process of its own, which is killed in the middle of it or has a small disk."""

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def killed_at(owner: Any, name: str, call: int, work: Callable[[], Any], *, after: bool = False) -> None:
    """Does work up to a call of a function, at which the process is killed; it has to come to that.

    Args:
        owner: Where the function is looked up.
        name: Its name.
        call: Which of its calls, from 1.
        work: What is done.
        after: Kill after the call, not before.
    """

    def run() -> None:
        calls, original = 0, getattr(owner, name)

        def deadly(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            result = None if calls == call and not after else original(*arguments, **options)
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, deadly)
            work()

    killed_in(run)


def killed_in(work: Callable[[], Any]) -> None:
    """Does work that kills its process."""
    assert _exit_code(work) == -signal.SIGKILL


def with_full_disk(work: Callable[[], Any], largest_file: int) -> str:
    """Does work while files cannot grow beyond a size, in bytes; the write fails as on a full disk.

    Returns:
        The error that it ends with: kind and message.
    """
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
        try:
            work()
        except Exception as error:
            sender.send(f"{type(error).__name__}: {error}")

    assert _exit_code(run) == 0
    assert receiver.poll(), "nothing failed"
    return str(receiver.recv())


def halved(original: Callable[..., Any]) -> Callable[..., Any]:
    """A `torch.save` that writes half of what it should and kills the process."""

    def save(content: Any, file: Any) -> None:
        original(content, file)
        file.flush()
        os.truncate(file.fileno(), os.fstat(file.fileno()).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    return save


def parts(directory: Path) -> list[Path]:
    """What a write that came to no end left behind."""
    return sorted(directory.rglob(".*"))


def _exit_code(run: Callable[[], None]) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(120)
    if process.exitcode is None:
        process.kill()
    return process.exitcode
