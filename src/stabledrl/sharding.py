"""Weights that are spread over processes: how they are split, and how they are put together for many forward passes.

Sampling calls the model once per denoising step, and as often as the completions of one process need: forward passes
that gather weights from other processes would cost an exchange each, and wait for processes that are done already.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed import DeviceMesh, ProcessGroup
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from stabledrl.errors import UserInputError


def decoder_layers(module: nn.Module) -> list[nn.Module]:
    """The layers that are gathered one at a time, by transformers' own list of what must stay whole.

    Raises:
        UserInputError: The model has no such list.
    """
    names = {name for part in module.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    layers = [part for part in module.modules() if type(part).__name__ in names]
    if not layers:
        raise UserInputError(
            f"{type(module).__name__} does not name its layers (_no_split_modules), so it cannot be sharded; use "
            f"strategy ddp"
        )
    return layers


def shard(module: nn.Module, mesh: DeviceMesh, dtype: torch.dtype | None = None, *, offload: bool = False) -> None:
    """Splits a model's weights over processes (FSDP2), layer by layer and the rest as one. Done once; in place.

    Args:
        module: A transformer.
        mesh: One dimension, the processes.
        dtype: Precision of forward and backward passes; None keeps that of the weights. Gradients are summed in
            float32, and no input is cast: log-likelihoods would lose digits.
        offload: Keep the shards on the CPU.
    """
    if isinstance(module, FSDPModule):
        return
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    policy = CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if offload else OffloadPolicy()
    for layer in decoder_layers(module):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=precision, offload_policy=policy)
    # The embedding and the head stay gathered from the forward to the backward pass, which begins with them.
    fully_shard(module, mesh=mesh, reshard_after_forward=False, mp_policy=precision, offload_policy=policy)


def checkpoint_activations(module: nn.Module) -> None:
    """Has each layer forget its activations and compute them again in the backward pass. Done once; in place.

    Not by wrapping the layers in modules: names, and so checkpoints, stay as they are.
    """
    for layer in decoder_layers(module):
        if not isinstance(layer.forward, partial):
            setattr(layer, "forward", partial(_recomputed, layer.forward))  # noqa: B010  # a method, for mypy


def _recomputed(forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **options)
    # Nothing is drawn in a layer: there is no random state to set back.
    return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False, **options)


@contextmanager
def gathered_once(model: nn.Module, device: torch.device) -> Iterator[nn.Module]:
    """Forward passes within wait for no other process; all processes enter and leave together.

    Not for passes with gradient.

    Args:
        model: As a strategy has it, or a frozen one. FullyShardedDataParallel must keep weights gathered after a
            forward pass, as `stabledrl.strategies.FSDP` makes it; the next backward pass frees them.
        device: Where forward passes are made. Whole weights that are kept elsewhere are there within.

    Yields:
        What to call.
    """
    if isinstance(model, DistributedDataParallel):
        # Its own forward pass sends buffers around.
        yield model.module
    elif isinstance(model, FullyShardedDataParallel):
        # A forward pass is what gathers weights. Made here, where all processes come by, and not where one may fail.
        with torch.no_grad():
            model(torch.zeros((1, 1), dtype=torch.int64, device=device))
        yield model
    elif parts := [part for part in model.modules() if isinstance(part, FSDPModule)]:
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield model
        finally:
            for index, part in enumerate(parts):
                part.set_reshard_after_forward(index > 0, recurse=False)  # as `shard` has it: the root comes first
                part.reshard()
    else:
        home = next((parameter.device for parameter in model.parameters()), device)
        model.to(device)
        try:
            yield model
        finally:
            model.to(home)


def shard_group(model: nn.Module) -> ProcessGroup | None:
    """The processes that each hold a part of the weights; None where every process holds all."""
    if isinstance(model, FullyShardedDataParallel):
        group: ProcessGroup | None = model.process_group
        return group
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            return parameter.device_mesh.get_group()
    return None
