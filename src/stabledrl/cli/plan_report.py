"""A plan in words and a table."""

from dataclasses import dataclass

from stabledrl.planning import Load, Memory, Setting
from stabledrl.planning.memory import MOMENTS

_GIB = 2**30
_NAMES = {"none": "one process", "ddp": "DDP", "fsdp": "FSDP", "fsdp2": "FSDP2"}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A planned run.

    Attributes:
        policy: Path or hub id.
        setting: How it is trained.
        load: On what, per process.
        memory: What that takes.
        precision: The trainer's.
        optimizer: Name of its class.
        world_size: GPUs.
        devices: GPUs per machine.
        prompts: Prompts per rollout.
        group_size: Completions per prompt.
        completion_length: Tokens of a completion.
        prompt_length: Tokens of the longest prompt.
        prompt_bounded: Whether the settings say so.
        updates: Optimizer steps per rollout.
        micro_batches: Parts of an optimizer step on each GPU.
        gpu_memory: GiB of a GPU.
        usable: GiB of it that the plan may fill.
    """

    policy: str
    setting: Setting
    load: Load
    memory: Memory
    precision: str
    optimizer: str
    world_size: int
    devices: int
    prompts: int
    group_size: int
    completion_length: int
    prompt_length: int
    prompt_bounded: bool
    updates: int
    micro_batches: int
    gpu_memory: float
    usable: float

    @property
    def fits(self) -> bool:
        """Whether the peak is within what may be filled."""
        return self.memory.peak <= self.usable * _GIB


def report(run: Run) -> str:
    """Describes a planned run, with a line per part of the memory."""
    return "\n".join([*_head(run), "", *_table(run.memory), "", _verdict(run), _host(run)])


def _head(run: Run) -> list[str]:
    setting, load, shape = run.setting, run.load, run.setting.shape
    kind = f"blocks of {shape.block_size}" if shape.block_size else "full attention"
    trained = "all" if setting.trainable == shape.parameters else f"{setting.trainable:,}"
    checkpointing = "with" if setting.checkpointing else "without"
    completions = run.prompts * run.group_size
    tokens = load.update_rows * load.scoring.tokens
    assumed = "" if run.prompt_bounded else " (assumed: data's max_prompt_length or --prompt_length bounds it)"
    return [
        f"model    {run.policy} ({shape.family}, {kind}): {shape.parameters:,} parameters, {trained} trained",
        f"run      {_NAMES[setting.sharding]} on {run.world_size} x {run.gpu_memory:g} GiB, {run.precision}, "
        f"{setting.weight_bytes} bytes per weight, {run.optimizer}, {checkpointing} activation checkpointing",
        f"rollout  {run.prompts} prompts x {run.group_size} = {completions} completions, "
        f"{completions // run.world_size} per GPU, up to {completions * run.completion_length:,} tokens; "
        f"prompts of up to {run.prompt_length} tokens{assumed}",
        f"update   {run.updates} per rollout; each {run.micro_batches} micro-batches of {load.update_rows} completions "
        f"per GPU: {tokens:,} tokens a pass, of which {load.scored:,} are scored; "
        f"{tokens * run.micro_batches * run.world_size:,} tokens an optimizer step",
    ]


def _table(memory: Memory) -> list[str]:
    lines = ["GiB per GPU".ljust(18) + "".join(moment.rjust(10) for moment in MOMENTS)]
    for name, part in memory.parts.items():
        lines.append(name.ljust(18) + "".join(f"{part[moment] / _GIB:10.1f}" for moment in MOMENTS))
    lines.append("sum".ljust(18) + "".join(f"{memory.total(moment) / _GIB:10.1f}" for moment in MOMENTS))
    return lines


def _verdict(run: Run) -> str:
    word = "fits" if run.fits else "does not fit"
    return (
        f"peak     {run.memory.peak / _GIB:.1f} GiB per GPU ({run.memory.fullest}): {word} into the {run.usable:g} of "
        f"{run.gpu_memory:g} GiB that CUDA and fragmentation leave"
    )


def _host(run: Run) -> str:
    own, machine = run.memory.host / _GIB, run.memory.host * run.devices / _GIB
    return f"host     up to {own:.1f} GiB per process while weights are read, {machine:.1f} GiB per machine"
