"""Checkpoints on disk: what ours hold beside the weights, written whole or not at all, found, refused if unfit.

A checkpoint is a file, or a directory with a file per process where the weights are sharded ("sharded" below).
"""

import os
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stabledrl.errors import UserInputError

POLICY_KEY = "policy"
"""Where a checkpoint holds the policy's description: `fingerprint`, `files` (config and tokenizer), `source`."""
WEIGHTS_PREFIX = "policy.model."
HEALTHY_NAME = "healthy.ckpt"
"""What a rollback returns to; never the newest state of a run."""
_REST = "meta.pt"
"""In a sharded checkpoint: all but weights and optimizer states. Lightning writes it last."""
_WRITERS = {"model.": "FSDP", "state_dict.": "FSDP2"}
"""Strategies that write sharded checkpoints, by what their names of weights start with."""


def is_sharded(path: str | Path) -> bool:
    """Whether there is a sharded checkpoint at a path, all of it."""
    directory = Path(path)
    return (directory / ".metadata").is_file() and zipfile.is_zipfile(directory / _REST)


def sharded_by(path: str | Path) -> str | None:
    """The strategy that wrote a sharded checkpoint, `FSDP` or `FSDP2`; None of any other checkpoint."""
    if not is_sharded(path):
        return None
    stored = _stored(Path(path))
    found = (writer for start, writer in _WRITERS.items() if any(name.startswith(start) for name in stored))
    return next(found, None)


def _stored(directory: Path) -> dict[str, Any]:
    """What is in the files of a sharded checkpoint."""
    from torch.distributed.checkpoint import FileSystemReader  # Slow to import, and rarely needed.

    return dict(FileSystemReader(directory).read_metadata().state_dict_metadata)


def read_rest(path: str | Path) -> dict[str, Any]:
    """Reads what a checkpoint holds beside weights; of an unsharded one all, memory-mapped.

    Raises:
        UserInputError: There is none at the path, or it is not one of ours.
    """
    file = Path(path) / _REST if is_sharded(path) else Path(path)
    if not file.is_file():
        raise UserInputError(f"no checkpoint at {str(path)!r}: expected a .ckpt that training wrote")
    try:
        checkpoint: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise UserInputError(f"cannot read {str(path)!r}: it is incomplete, or no checkpoint") from error
    policy = checkpoint.get(POLICY_KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(policy, dict) or not {"fingerprint", "files"} <= policy.keys():
        raise UserInputError(f"{str(path)!r} is not a checkpoint of this project: it holds no policy")
    return checkpoint


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Reads a training checkpoint on the CPU: a file memory-mapped, of a sharded one the weights and the rest.

    Sharded optimizer states are left where they are: with them, it would be three times as much.

    Raises:
        UserInputError: There is none at the path, or it is not one of ours.
    """
    checkpoint = read_rest(path)
    if is_sharded(path):
        checkpoint["state_dict"] = _sharded_weights(Path(path))
    if "state_dict" not in checkpoint:
        raise UserInputError(f"{str(path)!r} is not a checkpoint of this project: it holds no weights")
    return checkpoint


def _sharded_weights(directory: Path) -> dict[str, torch.Tensor]:
    from torch.distributed.checkpoint import TensorStorageMetadata, load

    weights = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in _stored(directory).items()
        if name.startswith(tuple(_WRITERS)) and isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*assuming the intent is to load in a single process.*")
        load(weights, checkpoint_id=directory, no_dist=True)
    return {name.partition(".")[2]: tensor for name, tensor in weights.items()}


def find_last_checkpoint(directory: str | Path) -> Path | None:
    """The newest complete checkpoint below a directory, by time of writing; None if there is none.

    A run that was killed while it wrote one may leave it cut off: the one before it is then the newest. Of those of the
    same time, `last.ckpt` is preferred. The state that a rollback would return to is passed over.
    """
    found: dict[Path, int] = {}
    for path in Path(directory).glob("**/*.ckpt"):
        if path.name != HEALTHY_NAME and (time := _written(path)) is not None:
            found[path] = time
    return max(found, key=lambda path: (found[path], path.name == "last.ckpt"), default=None)


def _written(path: Path) -> int | None:
    """When a checkpoint was written; None if it is incomplete, or was removed while looked at."""
    try:
        if is_sharded(path):
            return (path / _REST).stat().st_mtime_ns
        # The list of contents of a zip file is its end: without it, the file was cut off.
        return path.stat().st_mtime_ns if path.is_file() and zipfile.is_zipfile(path) else None
    except FileNotFoundError:
        return None


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Gives a path to write a file or directory to; at the end it is put on disk and takes the target's place.

    If that fails, the target is what it was before. What lies there while writing does not end in `.ckpt`.
    """
    partial = partial_path(target)
    discard(partial)
    try:
        yield partial
        put_in_place(partial, target)
    except BaseException:
        discard(partial)
        raise


def partial_path(target: Path) -> Path:
    """Where a checkpoint is written before it takes its place."""
    return target.with_name(f".{target.name}.partial")


def discard(path: Path) -> None:
    """Removes a file or directory, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put_in_place(partial: Path, target: Path) -> None:
    """Renames what was written to its target, once it is on disk. A kill at any moment leaves a complete checkpoint."""
    directories = [path for path in partial.rglob("*") if path.is_dir()]
    for path in [*(path for path in (partial, *partial.rglob("*")) if path.is_file()), *directories]:
        _sync(path)
    if not (target.is_dir() or (partial.is_dir() and target.exists())):
        partial.replace(target)
    else:
        # No directory can be replaced in one step. In between, the old one is still found, under another name.
        aside = target.with_name(f".old-{target.name}")
        discard(aside)
        target.rename(aside)
        partial.rename(target)
        discard(aside)
    _sync(target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
