"""`stabledrl fit | validate | test | predict`: Lightning's command line with the project's sections."""

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

import stabledrl
from stabledrl.callbacks import (
    GracefulStop,
    GradientSpikeMonitor,
    GroupRollout,
    RewardCollapseMonitor,
    RunCheckpoint,
    SampleTable,
    SampleWriter,
    StepProgressBar,
    TaskEvaluation,
    TrainingStoppedError,
)
from stabledrl.checkpoints import find_last_checkpoint
from stabledrl.cli.parsing import OneLineTrainerParser
from stabledrl.errors import UserInputError
from stabledrl.module import DiffusionPolicyModule

_SECTIONS: dict[str, type[Callback]] = {
    "rollout": GroupRollout,
    "evaluation": TaskEvaluation,
    "gradient_spikes": GradientSpikeMonitor,
    "reward_collapse": RewardCollapseMonitor,
    "samples": SampleTable,
    "checkpoint": RunCheckpoint,
}
"""Callbacks with a section of their own, so that a list of the user's callbacks cannot drop them."""


class TrainingCLI(LightningCLI):
    """Lightning's command line: sections of our callbacks, one place for outputs, checkpoints found by themselves."""

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--run_name", type=str, default="run", help="Names the folders below logs/ and checkpoints/.")
        parser.add_argument(
            "--num_threads", type=int | None, default=None, help="Threads of CPU operations; null leaves torch's choice."
        )
        for name, callback in _SECTIONS.items():
            parser.add_lightning_class_args(callback, name)
        parser.link_arguments("rollout.updates_per_rollout", "data.init_args.updates_per_rollout")
        parser.link_arguments("trainer.accumulate_grad_batches", "data.init_args.micro_batches")

    @override
    def _parse_ckpt_path(self) -> None:
        """Leaves the configuration alone: what the user says holds, not what a checkpoint remembers."""

    @override
    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        if config.num_threads is not None:
            if config.num_threads < 1:
                raise UserInputError(f"num_threads {config.num_threads} must be at least 1")
            torch.set_num_threads(config.num_threads)
        root = Path(config.trainer.default_root_dir or ".")
        checkpoints = root / "checkpoints" / config.run_name
        config.ckpt_path = self._checkpoint(config.ckpt_path, checkpoints)
        name = config.run_name if self.subcommand == "fit" else f"{config.run_name}/{self.subcommand}"
        version = _next_version(root / "logs" / name)
        if config.trainer.logger in (None, True):
            config.trainer.logger = {
                "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
                "init_args": {"save_dir": str(root / "logs"), "name": name, "version": version},
            }
        if config.checkpoint.dirpath is None:
            config.checkpoint.dirpath = str(checkpoints / f"version_{version}")

    def _checkpoint(self, path: str | None, directory: Path) -> str | None:
        """`last` and, outside of training, nothing stand for the newest checkpoint; `initial` for none."""
        if path == "initial" or (path is None and self.subcommand == "fit"):
            return None
        if path in (None, "last"):
            found = find_last_checkpoint(directory)
            if found is None:
                raise UserInputError(
                    f"no last.ckpt below {str(directory)!r}; name one with --ckpt_path, or --ckpt_path initial for the "
                    f"model that training starts from"
                )
            print(f"checkpoint: {found}")
            return str(found)
        if not Path(str(path)).is_file():
            raise UserInputError(f"no checkpoint at {path!r}; expected a .ckpt file, last or initial")
        return path

    @override
    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        if not isinstance(self.model, DiffusionPolicyModule):
            callbacks = [callback for callback in callbacks if not getattr(callback, "requires_rollouts", False)]
        if config.get("enable_checkpointing") is False or config.get("fast_dev_run"):
            callbacks = [callback for callback in callbacks if not isinstance(callback, RunCheckpoint)]
        callbacks += [GracefulStop(), SampleWriter()]
        if config.get("enable_progress_bar") is not False:
            callbacks.append(StepProgressBar())
        return super()._instantiate_trainer(config, callbacks)

    def after_fit(self) -> None:
        """Says where things are."""
        for logger in self.trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                print(f"curves: tensorboard --logdir {logger.save_dir}  (this run: {logger.log_dir})")
        checkpoint = getattr(self.trainer.checkpoint_callback, "last_model_path", "")
        if checkpoint:
            print(f"checkpoint: {checkpoint}")


def run_training(command: str, options: list[str]) -> int:
    """Runs a command of the trainer.

    Args:
        command: `fit`, `validate`, `test` or `predict`.
        options: Its options.

    Returns:
        The exit code, see `stabledrl.cli.main`.
    """
    _import_extension_points()
    # Lightning warns of `args` beside the process's own arguments, which are the same here.
    sys.argv = ["stabledrl"]
    try:
        cli = TrainingCLI(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},
            parser_class=OneLineTrainerParser,
            load_from_checkpoint_support=False,
            args=[command, *options],
        )
    except TrainingStoppedError as stop:
        print(f"stabledrl {command}: stopped: {stop}", file=sys.stderr)
        return 3
    for callback in cli.trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GracefulStop) and callback.signal_received is not None:
            return 128 + callback.signal_received
    return 0


def _import_extension_points() -> None:
    """Imports every module of the extension packages: a class is known by its short name once it is imported."""
    for name in ("backbones", "samplers", "likelihoods", "objectives", "rewards", "data", "callbacks"):
        package = importlib.import_module(f"{stabledrl.__name__}.{name}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
    for name in ("module", "sft", "schedules"):
        importlib.import_module(f"{stabledrl.__name__}.{name}")


def _next_version(directory: Path) -> int:
    taken = [int(path.name[8:]) for path in directory.glob("version_*") if path.name[8:].isdigit()]
    return max(taken, default=-1) + 1
