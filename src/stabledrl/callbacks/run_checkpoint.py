"""Checkpoints at intervals and at the end; the newest and the best are kept."""

import math
import os
import shutil
from pathlib import Path
from typing import Any
from weakref import proxy

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from typing_extensions import override

from stabledrl.callbacks.alarm import alarm
from stabledrl.callbacks.saving import save_checkpoint, use_whole_files, write_together
from stabledrl.checkpoints import written_whole
from stabledrl.errors import UserInputError

_ALL = -1


class RunCheckpoint(ModelCheckpoint):
    """Saves at intervals and after the last step; keeps the newest and the best, and `last.ckpt`, the newest.

    A checkpoint is whole or not there, whatever ends the run, also while one is written. `last.ckpt` takes no space of
    its own: it is a second name (hard link) of the newest, or a copy where the file system has none. While one is
    written, one more than is kept is on the disk; what that comes to is told at the start.

    A resumed run writes to a directory of its own and removes nothing of the one before it.

    Args:
        dirpath: Directory of the checkpoints; the command line fills it in.
        every_n_train_steps: Optimizer steps between checkpoints.
        keep_last: How many of the newest to keep; -1 keeps all.
        monitor: Metric that decides which are best; None keeps no others than the newest.
        keep_best: How many of the best by the monitored metric to keep besides; the earlier of equals.
        mode: Whether `min` or `max` of the monitored metric is best.
        save_weights_only: Leave out optimizer, loop and callback states: such a checkpoint cannot be resumed.

    Raises:
        UserInputError: A number is out of range.

    Example:
        >>> checkpoint = RunCheckpoint(dirpath="checkpoints/run", keep_last=2, monitor="val/sudoku/accuracy")
    """

    def __init__(
        self,
        dirpath: str | None = None,
        every_n_train_steps: int = 100,
        keep_last: int = 1,
        monitor: str | None = None,
        keep_best: int = 1,
        mode: str = "max",
        save_weights_only: bool = False,
    ) -> None:
        if every_n_train_steps < 1:
            raise UserInputError(f"every_n_train_steps {every_n_train_steps} must be at least 1")
        if keep_last < 1 and keep_last != _ALL:
            raise UserInputError(f"keep_last {keep_last} must be at least 1, or -1 for all")
        if keep_best < 0:
            raise UserInputError(f"keep_best {keep_best} must be at least 0")
        if mode not in ("min", "max"):
            raise UserInputError(f"mode {mode!r} is not one of min, max")
        super().__init__(
            dirpath=dirpath,
            filename="step-{step:06d}",
            auto_insert_metric_name=False,
            every_n_train_steps=every_n_train_steps,
            mode=mode,
            save_last=True,
            save_weights_only=save_weights_only,
            save_on_train_epoch_end=False,
        )
        self.keep_last = keep_last
        self.keep_best = 0 if monitor is None else keep_best
        # Not Lightning's `monitor`: it would save nothing before the metric is there.
        self._metric = monitor
        self._scores: dict[str, float] = {}
        """Every checkpoint that is kept, in the order of steps, with the metric then; nan if there was none."""

    @property
    @override
    def state_key(self) -> str:
        """The class alone, so that a run resumes with other intervals too."""
        return type(self).__name__

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        use_whole_files(trainer)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if trainer.is_global_zero:
            only_trained = getattr(pl_module, "lora", None) is not None
            self._tell_budget(_estimated_bytes(trainer, self.save_weights_only, only_trained))

    def _tell_budget(self, size: int) -> None:
        assert self.dirpath is not None
        directory = next(path for path in (Path(self.dirpath), *Path(self.dirpath).parents) if path.exists())
        free = shutil.disk_usage(directory).free
        if self.keep_last == _ALL:
            rank_zero_info(f"checkpoints: about {_readable(size)} each, all kept; {_readable(free)} free")
            return
        most = self.keep_last + self.keep_best + 1
        kept = f"{self.keep_last} newest" + (f", {self.keep_best} best" if self.keep_best else "")
        rank_zero_info(
            f"checkpoints: about {_readable(size)} each, at most {most} at a time ({kept}, 1 being written) = "
            f"{_readable(most * size)}; {_readable(free)} free"
        )
        if most * size > free:
            alarm(f"the disk of {self.dirpath!r} will be full: checkpoints need about {_readable(most * size)}")

    @override
    def _save_topk_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        path = self.format_checkpoint_name(monitor_candidates)
        # Before it is written: the paths are part of the state.
        self._enter(trainer, path, monitor_candidates)
        self._save_checkpoint(trainer, path)
        self._remove_others(trainer, path)

    def _enter(self, trainer: Trainer, path: str, monitor_candidates: dict[str, Tensor]) -> None:
        found = monitor_candidates.get(self._metric) if self._metric else None
        self._scores[path] = trainer.strategy.broadcast(math.nan if found is None else float(found))
        self._note(path)

    def _remove_others(self, trainer: Trainer, path: str) -> None:
        for stale in self._scores.keys() - self._kept():
            if self._should_remove_checkpoint(trainer, stale, path):  # not what the run was resumed from
                self._remove_checkpoint(trainer, stale)
            del self._scores[stale]

    def _note(self, path: str) -> None:
        assert self.dirpath is not None
        self.last_model_path = os.path.join(self.dirpath, f"{self.CHECKPOINT_NAME_LAST}{self.FILE_EXTENSION}")
        best = next(iter(self._best()[: self.keep_best]), None)
        self.best_model_path = path if best is None else best
        self.best_model_score = None if best is None else torch.tensor(self._scores[best])

    def _best(self) -> list[str]:
        """Those with a score, best first; of equals the earlier first."""
        sign = 1 if self.mode == "min" else -1
        scored = [path for path, score in self._scores.items() if not math.isnan(score)]
        return sorted(scored, key=lambda path: sign * self._scores[path])

    def _kept(self) -> set[str]:
        newest = list(self._scores) if self.keep_last == _ALL else list(self._scores)[-self.keep_last :]
        return {*newest, *self._best()[: self.keep_best]}

    @override
    def _save_checkpoint(self, trainer: Trainer, filepath: str) -> None:
        save_checkpoint(trainer, filepath, weights_only=self.save_weights_only)
        self._last_global_step_saved = trainer.global_step
        self._last_checkpoint_saved = filepath
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.after_save_checkpoint(proxy(self))

    @override
    def _save_last_checkpoint(self, trainer: Trainer, monitor_candidates: dict[str, Tensor]) -> None:
        path, last = Path(self._last_checkpoint_saved), Path(self.last_model_path)
        write_together(str(last), lambda: _give_second_name(path, last) if trainer.is_global_zero else None)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        candidates = self._monitor_candidates(trainer)
        path = self.format_checkpoint_name(candidates)
        if not self._should_skip_saving_checkpoint(trainer):
            self._save_topk_checkpoint(trainer, candidates)
            self._save_last_checkpoint(trainer, candidates)
        elif path in self._scores:
            # It was saved before the evaluation at the end of the run, whose result is its own.
            self._enter(trainer, path, candidates)
            self._remove_others(trainer, path)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "scores": self._scores}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Elsewhere, they are not this run's to remove.
        if state_dict["dirpath"] == self.dirpath:
            self._scores = {path: score for path, score in state_dict["scores"].items() if Path(path).exists()}


def _give_second_name(path: Path, name: Path) -> None:
    """A directory gets one for each of its files. Where the file system has no second names, they are copies."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    with written_whole(name) as partial:
        if path.is_dir():
            shutil.copytree(path, partial, copy_function=link)
        else:
            link(str(path), str(partial))


def _estimated_bytes(trainer: Trainer, weights_only: bool, only_trained: bool) -> int:
    """Weights, and twice the trained ones for the optimizer, as Adam has it. The rest is small."""
    assert trainer.model is not None
    size = 0
    for parameter in trainer.model.parameters():
        times = (1 if weights_only else 3) if parameter.requires_grad else (0 if only_trained else 1)
        size += times * parameter.numel() * parameter.element_size()
    return size * (trainer.world_size if isinstance(trainer.model, FullyShardedDataParallel) else 1)


def _readable(size: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size / 1e3:.1f} kB"
