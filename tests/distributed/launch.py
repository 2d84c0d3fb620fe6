"""Processes on the CPU that find each other."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def launch(*arguments: str, processes: int = 2, timeout: float = 900) -> list[subprocess.CompletedProcess[str]]:
    """Runs `tests.distributed.worker` as several processes, or as one that has strategies for several.

    Returns:
        What each left, by rank.
    """
    command = [sys.executable, "-m", "tests.distributed.worker", *arguments]
    return together(command, environments(processes), cwd=ROOT, timeout=timeout)


def environments(processes: int) -> list[dict[str, str]]:
    """What torchrun sets, by rank; Lightning knows it by the last one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = []
    for rank in range(processes):
        own: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
        own |= {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "OMP_NUM_THREADS": 1}
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "False"}
        own |= {"TORCHELASTIC_RUN_ID": "test"}
        found.append(os.environ | {key: str(value) for key, value in own.items()})
    return found


def together(
    command: list[str], environments: list[dict[str, str]], *, cwd: Path, timeout: float
) -> list[subprocess.CompletedProcess[str]]:
    """Runs a command once in every environment, all at the same time.

    Returns:
        What each left.
    """
    started = [
        subprocess.Popen(command, cwd=cwd, env=own, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for own in environments
    ]
    finished = []
    try:
        for process in started:
            out, err = process.communicate(timeout=timeout)
            finished.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    finally:
        for process in started:
            process.kill()
    return finished
