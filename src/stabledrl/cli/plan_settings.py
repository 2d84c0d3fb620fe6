"""What a plan needs to know of a run's settings, from how Lightning and the module are told it."""

from collections.abc import Callable
from typing import Any

import torch
from jsonargparse import Namespace

from stabledrl.backbones.shapes import ModelShape
from stabledrl.errors import UserInputError
from stabledrl.planning import Setting, state_bytes
from stabledrl.planning.memory import Sharding

_STRATEGIES: dict[str, Sharding] = {
    "SingleDeviceStrategy": "none",
    "ddp": "ddp",
    "DDPStrategy": "ddp",
    "FSDP": "fsdp",
    "FSDP2": "fsdp2",
}
_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true")


def read_devices(config: Namespace) -> tuple[int, int]:
    """GPUs of a machine and of the run.

    Raises:
        UserInputError: Their number is not said.
    """
    trainer, asked = config.trainer, config.world_size
    devices = trainer.devices
    if isinstance(devices, list):
        devices = len(devices)
    if str(devices) in ("auto", "-1") and trainer.accelerator == "cpu":
        devices = 1
    if not str(devices).isdigit():
        if asked is None:
            raise UserInputError(f"trainer.devices {devices!r} says no number; give the number of GPUs by --world_size")
        devices = -(-asked // trainer.num_nodes)
    own = int(devices)
    return (min(own, asked), asked) if asked is not None else (own, own * trainer.num_nodes)


def read_setting(
    config: Namespace, shape: ModelShape, optimizer: Callable[..., Any], devices: int, world_size: int
) -> Setting:
    """How the model is trained.

    Args:
        config: Settings of `stabledrl fit`.
        shape: The model.
        optimizer: Makes the optimizer.
        devices: GPUs of a machine.
        world_size: GPUs of the run.

    Raises:
        UserInputError: That cannot be planned, or training would refuse it.
    """
    init_args, precision = config.model.init_args, read_precision(config)
    sharding, options = _strategy(config.trainer.strategy, world_size)
    half = init_args.dtype != "float32" or precision in ("bf16-true", "16-true")
    hybrid = options.get("sharding_strategy", "").startswith("_HYBRID")
    callbacks = config.trainer.callbacks or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    monitors = (str(getattr(one, "class_path", one)) for one in callbacks)
    compared = init_args.kl_coefficient > 0 or any(name.endswith("PolicyDriftMonitor") for name in monitors)
    adapters = _adapters(init_args.lora, shape)
    return Setting(
        shape=shape,
        sharding=sharding,
        shards=1 if sharding in ("none", "ddp") else devices if hybrid else world_size,
        weight_bytes=2 if half else 4,
        compute_bytes=2 if half or precision != "32-true" else 4,
        state_bytes=state_bytes(optimizer, torch.bfloat16 if half and not adapters else torch.float32),
        checkpointing=init_args.activation_checkpointing,
        adapters=adapters,
        # With adapters the reference is the model without them.
        reference="none" if adapters or not compared else "cpu" if init_args.offload_reference else "gpu",
        offload=bool(options.get("cpu_offload")),
        bucket_copies=not options.get("gradient_as_bucket_view"),
    )


def read_precision(config: Namespace) -> str:
    """The trainer's precision.

    Raises:
        UserInputError: That cannot be planned.
    """
    precision = str(config.trainer.precision or "32-true")
    if precision not in _PRECISIONS:
        raise UserInputError(f"trainer.precision {precision!r} cannot be planned, only {', '.join(_PRECISIONS)}")
    return precision


def _adapters(lora: Namespace | None, shape: ModelShape) -> int:
    """Parameters of `stabledrl.backbones.lora.LoRA`: rank times inputs plus outputs of each matrix that gets one."""
    if lora is None:
        return 0
    known = shape.linear_widths
    targets = sorted(known) if lora.target_modules is None else lora.target_modules
    if unknown := [name for name in targets if name not in known]:
        raise UserInputError(f"lora.target_modules {unknown[0]!r} is not one of {', '.join(sorted(known))}")
    rank: int = lora.rank
    return rank * sum(known[name] for name in set(targets))


def _strategy(strategy: Any, world_size: int) -> tuple[Sharding, dict[str, Any]]:
    name = str(getattr(strategy, "class_path", strategy)).rpartition(".")[2]
    options = getattr(strategy, "init_args", None) or Namespace()
    if name == "auto":
        return ("ddp" if world_size > 1 else "none"), {}
    if name not in _STRATEGIES:
        raise UserInputError(f"strategy {name!r} cannot be planned; known: auto, {', '.join(sorted(_STRATEGIES))}")
    if world_size == 1:
        return "none", {}
    return _STRATEGIES[name], {**vars(options), **(getattr(strategy, "dict_kwargs", None) or {})}
