"""`stabledrl fit | validate | test | predict`: Lightning's command line with the project's sections."""

import importlib
import pkgutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException
from typing_extensions import override

import stabledrl
from stabledrl.backbones.loading import find_backbone
from stabledrl.callbacks import (
    Dashboard,
    EvaluationTable,
    GracefulStop,
    GradientSpikeMonitor,
    GroupRollout,
    RewardCollapseMonitor,
    RunCheckpoint,
    RunManifest,
    SampleTable,
    SampleWriter,
    StepProgressBar,
    TaskEvaluation,
    TrainingStoppedError,
)
from stabledrl.cli.checkpoint_choice import choose_checkpoint
from stabledrl.cli.console import quiet_console
from stabledrl.cli.parsing import OneLineTrainerParser, check_config_file, config_files, find_user_error
from stabledrl.cli.summary import RunSummary
from stabledrl.errors import UserInputError
from stabledrl.module import DiffusionPolicyModule
from stabledrl.processes import ProcessFailedError, is_first_to_tell

_SECTIONS: dict[str, type[Callback]] = {
    "rollout": GroupRollout,
    "evaluation": TaskEvaluation,
    "evaluation_table": EvaluationTable,
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
        names = "Names the folders below logs/ and checkpoints/."
        threads = "Threads of CPU operations; null leaves torch's choice."
        parser.add_argument("--run_name", type=str, default="run", help=names)
        parser.add_argument("--num_threads", type=int | None, default=None, help=threads)
        for name, callback in _SECTIONS.items():
            parser.add_lightning_class_args(callback, name)
        parser.link_arguments("rollout.updates_per_rollout", "data.init_args.updates_per_rollout")
        parser.link_arguments("trainer.accumulate_grad_batches", "data.init_args.micro_batches")

    @override
    def _set_seed(self) -> None:
        seed = self.config[self.subcommand].seed_everything  # or True, False: a random one, none
        if not isinstance(seed, bool | None) and not 0 <= seed < 2**32:
            raise UserInputError(f"seed_everything {seed} must lie between 0 and {2**32 - 1}")
        super()._set_seed()

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        for path in config_files(args):
            check_config_file(path, self._parser(args[0]))
        # Lightning warns of `args` beside the process's own arguments, which are the same here. They come back: further
        # processes are started with them.
        own, sys.argv = sys.argv, sys.argv[:1]
        try:
            super().parse_arguments(parser, args)
        finally:
            sys.argv = own

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
        if config.run_name in ("", ".", "..") or set(config.run_name) & set("/\\"):
            raise UserInputError(f"run_name {config.run_name!r} must be a plain folder name")
        if self._root().exists() and not self._root().is_dir():
            raise UserInputError(f"trainer.default_root_dir {str(self._root())!r} is no directory")
        checkpoints = self._root() / "checkpoints" / config.run_name
        config.ckpt_path = choose_checkpoint(config.ckpt_path, checkpoints, training=self.subcommand == "fit")
        if self.subcommand == "predict":
            config.return_predictions = False  # They are written to disk; nobody takes what a command returns.
        policy = config.model.get("init_args", {}).get("policy") if config.model else None
        if isinstance(policy, str):
            find_backbone(policy, config.model.init_args.get("revision"))

    def _root(self) -> Path:
        return Path(self.config[self.subcommand].trainer.default_root_dir or ".")

    @override
    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except ValueError as error:
            # An error in the constructor of a nested class comes wrapped in a report of everything that was tried.
            raise find_user_error(error) or error from error

    @override
    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        if not isinstance(self.model, DiffusionPolicyModule):
            callbacks = [callback for callback in callbacks if not getattr(callback, "requires_rollouts", False)]
        if config.get("enable_checkpointing") is False or config.get("fast_dev_run"):
            callbacks = [callback for callback in callbacks if not isinstance(callback, RunCheckpoint)]
        self._place_outputs(config, callbacks)
        callbacks += [RunSummary(), RunManifest(self._configuration()), Dashboard(), GracefulStop(), SampleWriter()]
        if config.get("enable_progress_bar") is not False:
            callbacks.append(StepProgressBar())
        try:
            return super()._instantiate_trainer(config, callbacks)
        except (ValueError, TypeError, MisconfigurationException) as error:
            # The trainer's arguments are all the user's.
            raise UserInputError(f"trainer: {error}") from error

    def _configuration(self) -> str:
        """All settings as text; without where to resume from, so that a resumed run has the same ones."""
        settings = self.config[self.subcommand].clone()
        settings.ckpt_path = None
        return str(self._parser(self.subcommand).dump(settings, skip_unset=False))

    def _place_outputs(self, config: dict[str, Any], callbacks: list[Callback]) -> None:
        """Numbers the run. Left out of the saved configuration, so that a run repeated from it gets its own number."""
        run_name = self.config[self.subcommand].run_name
        name = run_name if self.subcommand == "fit" else f"{run_name}/{self.subcommand}"
        logs, checkpoints = self._root() / "logs" / name, self._root() / "checkpoints" / run_name
        version = _next_version(logs, checkpoints) if self.subcommand == "fit" else _next_version(logs)
        if config.get("logger") in (None, True):
            config["logger"] = TensorBoardLogger(save_dir=str(self._root() / "logs"), name=name, version=version)
        for callback in callbacks:
            if isinstance(callback, RunCheckpoint) and callback.dirpath is None:
                callback.dirpath = str((checkpoints / f"version_{version}").absolute())

    @rank_zero_only
    def after_fit(self) -> None:
        """Says where things are."""
        for logger in self.trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                print(f"curves: tensorboard --logdir {logger.save_dir}  (this run: {logger.log_dir})")
        checkpoint = getattr(self.trainer.checkpoint_callback, "last_model_path", "")
        if checkpoint:
            print(f"checkpoint: {checkpoint}")
        if _signal_of(self.trainer) is not None:
            step, steps = self.trainer.global_step, self.trainer.max_steps
            print(f"stopped after step {step} of {steps}; the same command with --ckpt_path last goes on from there")


def run_training(command: str, options: list[str]) -> int:
    """Runs a command of the trainer.

    Args:
        command: `fit`, `validate`, `test` or `predict`.
        options: Its options.

    Returns:
        The exit code, see `stabledrl.cli.main`.
    """
    import_extension_points()
    try:
        with quiet_console():
            cli = _train(command, options)
    except TrainingStoppedError as stop:
        if is_first_to_tell(stop):
            print(f"stabledrl {command}: stopped: {stop}", file=sys.stderr)
        return 3
    except MisconfigurationException as error:
        raise UserInputError(str(error)) from error
    except UserInputError:
        raise
    except Exception as error:
        # One traceback, of the process where it happened if one alone failed.
        elsewhere = isinstance(error, ProcessFailedError) and error.__cause__ is None
        if elsewhere or not is_first_to_tell(error):
            return 1
        raise
    except SystemExit as end:
        # Lightning ends an interrupted trainer with exit code 1 or none.
        if isinstance(end.__context__, KeyboardInterrupt):
            return 128 + signal.SIGINT
        if isinstance(end, SIGTERMException):
            return 128 + signal.SIGTERM
        raise
    received = _signal_of(cli.trainer)
    return 0 if received is None else 128 + received


def _signal_of(trainer: Trainer) -> int | None:
    """The signal that ended the run, if one did."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    received = (callback.signal_received for callback in callbacks if isinstance(callback, GracefulStop))
    return next((number for number in received if number is not None), None)


def _train(command: str, options: list[str]) -> TrainingCLI:
    return TrainingCLI(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        auto_configure_optimizers=False,
        seed_everything_default=0,
        save_config_kwargs={"overwrite": True},
        parser_kwargs={"prog": "stabledrl"},
        parser_class=OneLineTrainerParser,
        load_from_checkpoint_support=False,
        args=[command, *options],
    )


def import_extension_points() -> None:
    """Imports every module of the extension packages: a class is known by its short name once it is imported."""
    for name in ("backbones", "samplers", "likelihoods", "objectives", "rewards", "data", "callbacks"):
        package = importlib.import_module(f"{stabledrl.__name__}.{name}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
    for name in ("module", "sft", "schedules"):
        importlib.import_module(f"{stabledrl.__name__}.{name}")


def _next_version(*directories: Path) -> int:
    """One more than the highest number in any of the directories."""

    def taken(directory: Path) -> Iterator[int]:
        return (int(path.name[8:]) for path in directory.glob("version_*") if path.name[8:].isdigit())

    return max((number for directory in directories for number in taken(directory)), default=-1) + 1
