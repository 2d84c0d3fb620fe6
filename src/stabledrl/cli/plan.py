"""`stabledrl plan`: what a training run would hold in memory, before a weight is read or a GPU is there."""

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser, OptimizerCallable
from typing_extensions import override

from stabledrl.backbones.shapes import model_shape
from stabledrl.cli.parsing import OneLineTrainerParser, find_user_error
from stabledrl.cli.plan_report import Run, report
from stabledrl.cli.plan_settings import read_devices, read_precision, read_setting
from stabledrl.cli.training import TrainingCLI, import_extension_points
from stabledrl.diffusion import check_attention
from stabledrl.errors import UserInputError
from stabledrl.needs import check_needs
from stabledrl.planning import measure_load, plan_memory
from stabledrl.processes import check_shares
from stabledrl.protocols import LikelihoodEstimator, Objective, Sampler

_HELP = """usage: stabledrl plan -c FILE [-c FILE ...] [options]

Prints the parameters, tokens and memory per GPU of the run that stabledrl fit would make of the same settings. Reads no
weights and needs no GPU. Exit code 1 if the run does not fit.

  --gpu_memory GIB       of one GPU (default 80)
  --world_size N         GPUs; by default trainer.devices times trainer.num_nodes
  --prompt_length N      tokens of the longest prompt; by default data.init_args.max_prompt_length, or 512
  --section.name=value   any option of stabledrl fit"""
PROMPT_LENGTH = 512
"""Tokens of a prompt where nothing bounds them."""
RESERVE = 0.1
"""Share of a GPU's memory left to CUDA, NCCL and fragmentation."""


class PlanCLI(TrainingCLI):
    """Reads the settings of a training run and makes nothing of it."""

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        super().add_arguments_to_parser(parser)
        parser.add_argument("--gpu_memory", type=float, default=80.0, help="GiB of one GPU.")
        parser.add_argument("--world_size", type=int | None, default=None, help="GPUs; null takes the trainer's.")
        parser.add_argument(
            "--prompt_length",
            type=int | None,
            default=None,
            help=f"Tokens of the longest prompt; null takes data's max_prompt_length, or {PROMPT_LENGTH}.",
        )

    @override
    def _set_seed(self) -> None:
        """Nothing is drawn."""

    @override
    def before_instantiate_classes(self) -> None:
        """Nothing is looked for."""

    @override
    def instantiate_classes(self) -> None:
        """Tasks read data, and a trainer needs its devices."""

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing is run."""


def run_plan(options: list[str]) -> int:
    """Prints the plan.

    Args:
        options: Those of `stabledrl fit`, and `--gpu_memory`, `--world_size`, `--prompt_length`.

    Returns:
        0 if the run fits, 1 if it does not.

    Raises:
        UserInputError: The run could not start, or is of a kind that cannot be planned.
    """
    if {"-h", "--help"} & set(options):
        print(_HELP)
        return 0
    import_extension_points()
    cli = PlanCLI(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        auto_configure_optimizers=False,
        parser_kwargs={"prog": "stabledrl plan"},
        parser_class=OneLineTrainerParser,
        load_from_checkpoint_support=False,
        args=["fit", *options],
    )
    try:
        run = _plan(cli.config.fit)
    except ValueError as error:
        raise find_user_error(error) or error from error
    print(report(run))
    return 0 if run.fits else 1


def _plan(config: Namespace) -> Run:
    model, data, trainer, rollout = config.model, config.data, config.trainer, config.rollout
    _check(config)
    devices, world_size = read_devices(config)
    made = _instantiate(model.init_args)
    check_needs(made.objective, made.likelihood, made.sampler)
    micro_batches, prompts = trainer.accumulate_grad_batches, data.init_args.prompts_per_rollout
    check_shares(prompts, rollout.group_size, world_size, micro_batches)
    shape = model_shape(model.init_args.policy, model.init_args.block_size, model.init_args.revision)
    check_attention(shape.block_size, made.sampler, made.likelihood)
    prompt_length = config.prompt_length or data.init_args.max_prompt_length or PROMPT_LENGTH
    load = measure_load(
        made.sampler,
        made.likelihood,
        prompt_length=prompt_length,
        rollout_rows=prompts * rollout.group_size // world_size,
        micro_batches=micro_batches,
        rows_per_forward=rollout.rows_per_forward,
        evaluation_rows=-(-data.init_args.evaluation_batch_size // world_size),
    )
    setting = read_setting(config, shape, made.optimizer, devices, world_size)
    return Run(
        policy=model.init_args.policy,
        setting=setting,
        load=load,
        memory=plan_memory(setting, load),
        precision=read_precision(config),
        optimizer=str(getattr(model.init_args.optimizer, "class_path", model.init_args.optimizer)).rpartition(".")[2],
        world_size=world_size,
        devices=devices,
        prompts=prompts,
        group_size=rollout.group_size,
        completion_length=made.sampler.completion_length,
        prompt_length=prompt_length,
        prompt_bounded=bool(config.prompt_length or data.init_args.max_prompt_length),
        updates=rollout.updates_per_rollout,
        micro_batches=micro_batches,
        gpu_memory=config.gpu_memory,
        usable=config.gpu_memory * (1 - RESERVE),
    )


def _check(config: Namespace) -> None:
    """Refuses what cannot be planned."""
    for name, section, known in (
        ("model", config.model, "DiffusionPolicyModule"),
        ("data", config.data, "PromptDataModule"),
    ):
        own = "none" if section is None else str(section.class_path).rpartition(".")[2]
        if own != known:
            raise UserInputError(f"{name} {own} cannot be planned, only {known}")
    if not config.gpu_memory > 0:
        raise UserInputError(f"gpu_memory {config.gpu_memory} must be above 0 GiB")
    for name in ("world_size", "prompt_length"):
        if config[name] is not None and config[name] < 1:
            raise UserInputError(f"{name} {config[name]} must be at least 1")


def _instantiate(init_args: Namespace) -> Namespace:
    """Objective, estimator, sampler and what makes the optimizer: the parts that need neither model nor data."""
    parser = ArgumentParser(exit_on_error=False)
    names = {"objective": Objective, "likelihood": LikelihoodEstimator, "sampler": Sampler}
    for name, kind in names.items():
        parser.add_subclass_arguments(kind, name)
    parser.add_argument("--optimizer", type=OptimizerCallable)
    own = Namespace(**{name: init_args[name] for name in (*names, "optimizer")})
    made: Namespace = parser.instantiate(own)
    return made
