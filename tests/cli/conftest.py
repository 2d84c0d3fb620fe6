"""Commands run in this process: what they change for the whole process is put back."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import lightning.pytorch  # noqa: F401  # its log goes to the standard error of its import: not to be a test's
import pytest
import torch
from tests.cli.runs import small

from stabledrl.cli import main


@pytest.fixture(autouse=True)
def _process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    threads = torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    torch.set_num_threads(threads)
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        os.environ.pop(name, None)
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a run of two steps, not to be written to."""
    directory = tmp_path_factory.mktemp("trained")
    # Warm and large enough for groups to differ, so that the weights move.
    assert main(["fit", *small(directory, "--rollout.group_size=8", "--rollout.temperature=2")]) == 0
    return directory


@pytest.fixture(scope="session")
def checkpoint(trained: Path) -> Path:
    return trained / "checkpoints" / "quickstart" / "version_0" / "last.ckpt"
