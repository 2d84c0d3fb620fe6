"""Checkpoint files: what ours hold beside the weights, finding the newest, refusing what does not fit."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from stabledrl.errors import UserInputError

POLICY_KEY = "policy"
"""Where a checkpoint holds the policy's description: `fingerprint`, `files` (config and tokenizer), `source`."""
WEIGHTS_PREFIX = "policy.model."


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Reads a training checkpoint on the CPU, memory-mapped.

    Raises:
        UserInputError: There is none at the path, or it is not one of ours.
    """
    file = Path(path)
    if not file.is_file():
        raise UserInputError(f"no checkpoint at {str(path)!r}: expected a .ckpt file that training wrote")
    try:
        checkpoint: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise UserInputError(f"cannot read {str(path)!r}: it is incomplete, or no checkpoint") from error
    policy = checkpoint.get(POLICY_KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(policy, dict) or not {"fingerprint", "files"} <= policy.keys() or "state_dict" not in checkpoint:
        raise UserInputError(f"{str(path)!r} is not a checkpoint of this project: it holds no policy")
    return checkpoint


def find_last_checkpoint(directory: str | Path) -> Path | None:
    """The newest complete checkpoint below a directory, by time of writing; None if there is none.

    A run that was killed while it wrote one may leave it cut off: the one before it is then the newest. Of files of the
    same time, `last.ckpt` is preferred.
    """
    # The list of contents of a zip file is its end: without it, the file was cut off.
    complete = [file for file in Path(directory).glob("**/*.ckpt") if file.is_file() and zipfile.is_zipfile(file)]
    return max(complete, key=lambda file: (file.stat().st_mtime_ns, file.name == "last.ckpt"), default=None)


def check_fingerprint(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Compares what a checkpoint was trained on with the policy at hand.

    Args:
        saved: `Policy.fingerprint` at the time of saving.
        own: `Policy.fingerprint` of the policy that would take the weights.

    Raises:
        UserInputError: They differ; the message names every difference.
    """
    differences = [
        f"{name}: checkpoint {saved.get(name)!r}, policy {own.get(name)!r}"
        for name in sorted({*saved, *own})
        if saved.get(name) != own.get(name)
    ]
    if differences:
        raise UserInputError(f"the checkpoint is of another model ({'; '.join(differences)})")
