"""Two processes on the CPU that find each other."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def launch(*arguments: str, timeout: float = 900) -> list[subprocess.CompletedProcess[str]]:
    """Runs `tests.distributed.worker` as two processes.

    Returns:
        What each left, by rank.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in (0, 1):
        # What torchrun sets; Lightning knows it by the last one.
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        own |= {"OMP_NUM_THREADS": 1, "TORCHELASTIC_USE_AGENT_STORE": "False"}
        environment = os.environ | {key: str(value) for key, value in own.items()}
        command = [sys.executable, "-m", "tests.distributed.worker", *arguments]
        processes.append(
            subprocess.Popen(
                command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    finished = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=timeout)
            finished.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return finished
