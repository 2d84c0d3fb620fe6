"""Lightning's sharding strategies with the defaults that hold for online reinforcement learning.

Plain data parallelism needs none of them: `strategy: ddp`.
"""

from abc import abstractmethod
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, ParallelStrategy
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from typing_extensions import override

from stabledrl.checkpoints import POLICY_KEY, check_fingerprint, partial_path, read_rest, sharded_by, written_whole
from stabledrl.errors import UserInputError
from stabledrl.policy_module import PolicyModule
from stabledrl.sharding import decoder_layers

_TIMEOUT_MINUTES = 30.0


class _WholeCheckpoints(ParallelStrategy):
    """Writes directories whole or not at all, and looks at what a checkpoint is of before it loads weights."""

    @property
    @abstractmethod
    def saves_directories(self) -> bool:
        """Whether a checkpoint is a directory with a file per process."""
        ...

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None
    ) -> None:
        if not self.saves_directories:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        path = Path(filepath)
        # What is within begins with a broadcast by the first process, and ends for it when all have written.
        with written_whole(path) if self.is_global_zero else nullcontext(partial_path(path)) as partial:
            super().save_checkpoint(checkpoint, partial, storage_options)

    @override
    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        if isinstance(self.lightning_module, PolicyModule):
            saved = read_rest(checkpoint_path)[POLICY_KEY]["fingerprint"]
            check_fingerprint(saved, self.lightning_module.loaded_policy.fingerprint)
        if (writer := sharded_by(checkpoint_path)) not in (None, type(self).__name__):
            raise UserInputError(
                f"checkpoint {str(checkpoint_path)!r} has a file per process, written by {writer}, which "
                f"{type(self).__name__} cannot read: go on with trainer.strategy stabledrl.strategies.{writer}"
            )
        return super().load_checkpoint(checkpoint_path, weights_only)


class FSDP(_WholeCheckpoints, FSDPStrategy):
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
    def saves_directories(self) -> bool:
        return self._state_dict_type == "sharded"

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


class FSDP2(_WholeCheckpoints, ModelParallelStrategy):
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

    @property
    @override
    def saves_directories(self) -> bool:
        return bool(self._save_distributed_checkpoint)

    @override
    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()
