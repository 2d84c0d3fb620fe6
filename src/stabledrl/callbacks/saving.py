"""Saves checkpoints whole or not at all; where that fails, all processes know."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch.distributed.checkpoint import CheckpointException
from typing_extensions import override

from stabledrl.checkpoints import read_checkpoint, sharded_by, written_whole
from stabledrl.errors import UserInputError
from stabledrl.processes import Processes


class WholeFileIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place, puts it on disk, and renames it.

    Lightning's own way holds it in memory a second time and goes by the system's temporary directory, which may be too
    small and is often on another disk: moved from there, a file is cut off by a kill.

    Of a sharded checkpoint it reads the weights, whole; training goes on from one with the strategy that wrote it.

    Args:
        training: Whether what is loaded is to be trained on.
    """

    def __init__(self, *, training: bool = True) -> None:
        self.training = training

    @override
    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        writer = sharded_by(path)
        if writer is None:
            return super().load_checkpoint(path, *arguments, **options)
        if self.training:
            raise UserInputError(
                f"checkpoint {str(path)!r} has a file per process: go on with trainer.strategy "
                f"stabledrl.strategies.{writer}, on any number of processes, or start from the model that stabledrl "
                f"export makes of it"
            )
        return read_checkpoint(path)

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Through a file of Python's: errors keep their number.
        with written_whole(target) as partial, partial.open("wb") as file:
            torch.save(checkpoint, file)


def use_whole_files(trainer: Trainer) -> None:
    """Has whatever saves with this trainer write whole files, unless the user chose a way of writing; done again for
    every command.
    """
    if type(trainer.strategy.checkpoint_io) in (TorchCheckpointIO, WholeFileIO):
        trainer.strategy.checkpoint_io = WholeFileIO(training=trainer.state.fn == TrainerFn.FITTING)


def save_checkpoint(trainer: Trainer, path: str, *, weights_only: bool = False) -> None:
    """Saves the state of the run; all processes call this.

    Args:
        trainer: The trainer.
        path: The checkpoint.
        weights_only: Leave out all that a resumed run needs beside the weights.

    Raises:
        UserInputError: A process cannot write, as on a full disk. The checkpoints before it are what they were.
    """
    use_whole_files(trainer)
    with _explained(path):
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only)
    # Not trainer.save_checkpoint: its barrier would wait for a process that failed.
    write_together(path, lambda: trainer.strategy.save_checkpoint(checkpoint, path))


def write_together(path: str, write: Callable[[], None]) -> None:
    """Has all processes write their part of a checkpoint, or of what lies beside it.

    Raises:
        UserInputError: One of them cannot write.
    """

    def explained() -> None:
        with _explained(path):
            write()

    Processes.of_run().together(explained, "saving")


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, CheckpointException) as error:
        reason = _find_os_error(error)
        if reason is None:
            raise
        raise UserInputError(
            f"cannot write {path!r}: {reason.strerror or reason}; the checkpoints before are intact, --ckpt_path last "
            f"resumes from the newest"
        ) from error


def _find_os_error(error: BaseException) -> OSError | None:
    """The operating system's error that another one came from."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, OSError):
        if isinstance(link, CheckpointException):
            link = next(iter(link.failures.values()))[0]
        else:
            link = link.__cause__ or link.__context__
    return link
