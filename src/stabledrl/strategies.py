"""Lightning's sharding strategies with the defaults that hold for online reinforcement learning.

Plain data parallelism needs none of them: `strategy: ddp`.
"""

from datetime import timedelta
from typing import Literal

import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.sharding import decoder_layers

_TIMEOUT_MINUTES = 30.0


class FSDP(FSDPStrategy):
    """FullyShardedDataParallel: gradients and optimizer state are always sharded, weights between updates.

    While a rollout is sampled the weights stay gathered, so that its cost in exchanges does not grow with the denoising
    steps; FULL_SHARD would gather at every forward pass and wait for processes whose completions have all ended. Where
    the gathered weights do not fit beside the activations use `FSDP2`.

    Gradients are summed and buffers kept in float32, and inputs are not cast, whatever the precision of the trainer.

    Args:
        sharding_strategy: `SHARD_GRAD_OP`, or `_HYBRID_SHARD_ZERO2`: the same within a node, replicated over nodes.
        state_dict_type: `full` writes one file, `sharded` a directory with a file per process.
        cpu_offload: Keep shards and optimizer state on the CPU.
        timeout_minutes: How long a process waits for the others; a rollout's longest difference has to fit in.

    Raises:
        UserInputError: Another sharding strategy.

    Example:
        >>> strategy = FSDP()
    """

    def __init__(
        self,
        sharding_strategy: Literal["SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"] = "SHARD_GRAD_OP",
        state_dict_type: Literal["full", "sharded"] = "full",
        cpu_offload: bool = False,
        timeout_minutes: float = _TIMEOUT_MINUTES,
    ) -> None:
        if sharding_strategy not in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"):
            raise UserInputError(
                f"sharding_strategy {sharding_strategy!r} must be SHARD_GRAD_OP or _HYBRID_SHARD_ZERO2: a forward pass "
                f"that gathers weights would wait for processes that are done sampling; FSDP2 shards weights fully"
            )
        super().__init__(
            sharding_strategy=ShardingStrategy[sharding_strategy],
            state_dict_type=state_dict_type,
            cpu_offload=cpu_offload,
            timeout=timedelta(minutes=timeout_minutes),
        )

    @property
    @override
    def mixed_precision_config(self) -> MixedPrecision | None:
        precision = self.precision_plugin.precision
        if precision == "32-true":
            return None
        return MixedPrecision(
            param_dtype=torch.bfloat16 if precision.startswith("bf16") else torch.float16,
            reduce_dtype=torch.float32,
            buffer_dtype=torch.float32,
            cast_root_forward_inputs=False,
            cast_forward_inputs=False,
        )

    @override
    def _setup_model(self, model: nn.Module) -> nn.Module:
        layers = {type(layer) for layer in decoder_layers(model)}
        wrapped = FullyShardedDataParallel(
            model,
            cpu_offload=self.cpu_offload,
            mixed_precision=self.mixed_precision_config,
            sharding_strategy=self.sharding_strategy,
            auto_wrap_policy=ModuleWrapPolicy(layers),
            device_id=self.root_device,  # Lightning passes its index, which a CPU does not have
            **self.kwargs,
        )
        return super()._setup_model(wrapped)


class FSDP2(ModelParallelStrategy):
    """FSDP2 over all processes: weights, gradients and optimizer state are sharded, also between layers' passes.

    Weights are gathered layer by layer in an update, and once for a whole rollout.

    Args:
        save_distributed_checkpoint: Write a directory with a file per process instead of one file.
        timeout_minutes: How long a process waits for the others; a rollout's longest difference has to fit in.

    Example:
        >>> strategy = FSDP2()
    """

    def __init__(self, save_distributed_checkpoint: bool = False, timeout_minutes: float = _TIMEOUT_MINUTES) -> None:
        super().__init__(
            tensor_parallel_size=1,
            save_distributed_checkpoint=save_distributed_checkpoint,
            timeout=timedelta(minutes=timeout_minutes),
        )

    @override
    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()
