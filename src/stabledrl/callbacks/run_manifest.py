"""What a run was made of, in a file beside its logs and its checkpoints."""

import hashlib
import importlib.metadata
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

import stabledrl
from stabledrl.callbacks.saving import write_together
from stabledrl.checkpoints import written_whole
from stabledrl.protocols import Split, Task

NAME = "manifest.json"
_SPLITS: tuple[Split, ...] = ("train", "evaluation")


class RunManifest(Callback):
    """Writes `manifest.json` into the run's log directory and that of its checkpoints when training starts.

    It names the versions of all installed packages, the commit of the working directory and of this package and whether
    files differed from it, the policy, the rows of every task (number, hash, where they were read from and at which
    revision), the command line, host, devices, seed, the checkpoint that was resumed from, and the configuration's
    hash.

    Args:
        configuration: The configuration as text; None where there is none.

    Example:
        >>> manifest = RunManifest("trainer: {max_steps: 10}")
    """

    def __init__(self, configuration: str | None = None) -> None:
        self.configuration = configuration

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        places = [trainer.log_dir, getattr(trainer.checkpoint_callback, "dirpath", None)]  # asked by all processes
        text = json.dumps(self.describe(trainer), indent=1, sort_keys=True) if trainer.is_global_zero else None
        for place in dict.fromkeys(str(Path(place).absolute()) for place in places if place is not None):
            path = Path(place) / NAME
            write_together(str(path), partial(_write, path, text))

    def describe(self, trainer: Trainer) -> dict[str, Any]:
        """The content of the file."""
        rollout = next((own for own in trainer.callbacks if hasattr(own, "group_size")), None)  # type: ignore[attr-defined]
        text = self.configuration
        return {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(sys.argv),
            "working_directory": str(Path.cwd()),
            "configuration_sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
            "seed": getattr(rollout, "seed", getattr(trainer.lightning_module, "seed", None)),
            "resumed_from": None if trainer.ckpt_path is None else str(Path(trainer.ckpt_path).absolute()),
            "git": {
                "working_directory": git_state(Path.cwd()),
                "stabledrl": git_state(Path(stabledrl.__file__).parent),
            },
            "host": {"name": platform.node(), "system": platform.platform(), "python": platform.python_version()},
            "devices": _devices(trainer),
            "policy": _describe_policy(trainer.lightning_module),
            "packages": {own.name: own.version for own in importlib.metadata.distributions() if own.name},
            "data": {task.name: _describe_data(task) for task in _tasks(trainer)},
        }


def _write(path: Path, text: str | None) -> None:
    if text is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as unfinished:
        unfinished.write_text(f"{text}\n", encoding="utf-8")


def git_state(directory: Path) -> dict[str, Any] | None:
    """Commit of a directory's repository, and whether its files differ from it; None if it is in none."""

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(directory), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    changed = git("status", "--porcelain")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _devices(trainer: Trainer) -> dict[str, Any]:
    device = trainer.strategy.root_device
    return {
        "kind": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processes": trainer.world_size,
        "nodes": trainer.num_nodes,
        "strategy": type(trainer.strategy).__name__,
        "precision": trainer.precision,
        "cuda": torch.version.cuda,
    }


def _describe_policy(module: Any) -> dict[str, Any] | None:
    policy = getattr(module, "policy", None)
    return None if policy is None else {"source": policy.source, "fingerprint": policy.fingerprint}


def _tasks(trainer: Trainer) -> list[Task]:
    data = trainer.datamodule  # type: ignore[attr-defined]
    tasks = getattr(data, "tasks", None) or [getattr(data, "task", None)]
    return [task for task in tasks if isinstance(task, Task)]


def _describe_data(task: Task) -> dict[str, Any]:
    sources: Mapping[str, Any] = getattr(task, "sources", {})
    return {
        split: {
            "rows": len(rows),
            "sha256": _digest(rows),
            "sources": [
                {"path": source.path, "split": source.split, "revision": source.revision}
                for source in sources.get(split, ())
            ],
        }
        for split, rows in ((split, task.rows(split)) for split in _SPLITS)
    }


def _digest(rows: Iterable[Mapping[str, Any]]) -> str:
    """Tells data apart where no revision does: files, generated tasks, a branch that moved."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(dict(row), sort_keys=True, default=str).encode())
    return digest.hexdigest()
