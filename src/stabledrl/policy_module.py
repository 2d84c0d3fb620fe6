"""What every LightningModule of the project does with its policy: load, run, optimise, describe in checkpoints."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.strategies import FSDPStrategy, Strategy
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from typing_extensions import override

from stabledrl.backbones import NewPolicy, Policy, load_policy
from stabledrl.backbones.lora import LoRA, WithoutAdapters, is_adapter
from stabledrl.checkpoints import POLICY_KEY, check_fingerprint
from stabledrl.errors import UserInputError
from stabledrl.gradients import check_update_precision
from stabledrl.protocols import Denoiser
from stabledrl.sharding import checkpoint_activations, gathered_once, shard
from stabledrl.types import Vocabulary

Precision = Literal["float32", "bfloat16", "float16"]


class PolicyModule(LightningModule):
    """Base of the modules that train a policy.

    Args:
        policy: Model directory, hub id, the shape of a new model, or a policy in memory. Nothing is loaded or made
            before `configure_model`.
        optimizer: Makes the optimizer from the trainable parameters.
        lr_scheduler: Makes the learning-rate schedule, stepped once per optimizer step; None keeps the rate.
        dtype: Precision of the weights that are loaded.
        activation_checkpointing: Compute activations anew in the backward pass instead of keeping them: less memory,
            about a third more time per update.
        lora: Adapters to train in place of the weights; None trains the weights.
        block_size: Tokens per block of a block-causal model; None takes what its config.json or its family says.
        mask_token_id: The mask token; None takes what config.json or the family says.
        revision: Branch, tag or commit of a hub id; None takes its main branch.

    Raises:
        UserInputError: One of the last three cannot be right, whatever the model, or is given for a policy that is not
            read from anywhere.
    """

    def __init__(
        self,
        policy: str | NewPolicy | Policy,
        optimizer: OptimizerCallable,
        lr_scheduler: LRSchedulerCallable | None,
        dtype: Precision = "float32",
        activation_checkpointing: bool = False,
        lora: LoRA | None = None,
        *,
        block_size: int | None = None,
        mask_token_id: int | None = None,
        revision: str | None = None,
    ) -> None:
        super().__init__()
        self._reading: dict[str, Any] = {
            "block_size": block_size,
            "mask_token_id": mask_token_id,
            "revision": revision,
        }
        _check_reading(policy, self._reading)
        self.activation_checkpointing = activation_checkpointing
        self.lora = lora
        # Checkpoints of adapters lack the weights, which are those of the model that was loaded.
        self.strict_loading = lora is None
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._make_optimizer = optimizer
        self._make_scheduler = lr_scheduler
        # A policy kept under two names would be saved twice.
        self._source = None if isinstance(policy, Policy) else policy
        self.policy: Policy | None = policy if isinstance(policy, Policy) else None

    @override
    def setup(self, stage: str) -> None:
        if self.lora is not None:
            _check_strategy(self.trainer.strategy, self._dtype)

    @override
    def configure_model(self) -> None:
        """Loads or makes the policy and splits it over processes, once."""
        self.load()
        self.prepare()

    def load(self) -> None:
        """Loads or makes the policy and adds its adapters, once."""
        if self.policy is None:
            source = self._source
            assert source is not None
            if isinstance(source, NewPolicy):
                self.policy = source.build()
            else:
                self.policy = load_policy(source, self._dtype, **self._reading)
        if self.lora is not None:
            self.lora.add_to(self.policy)

    def prepare(self) -> None:
        """Readies the policy for training, once; shards it where the strategy leaves that to the module (FSDP2)."""
        if self.activation_checkpointing:
            checkpoint_activations(self.loaded_policy)
        if self.device_mesh is not None:
            shard(self.loaded_policy, self.device_mesh["data_parallel"], self.compute_dtype)

    @property
    def compute_dtype(self) -> torch.dtype | None:
        """Precision of forward passes on sharded weights; None for that of the weights."""
        return torch.bfloat16 if self.trainer.precision == "bf16-mixed" else None

    @property
    def wrapped(self) -> nn.Module:
        """This module as the strategy runs it."""
        return self.trainer.model or self

    @contextmanager
    def gathered(self, model: Denoiser | None = None) -> Iterator[Denoiser]:
        """The policy for passes without gradient that wait for no other process, see `gathered_once`.

        Args:
            model: Its reference, in place of the policy.
        """
        assert model is None or isinstance(model, nn.Module | WithoutAdapters)
        weights = model if isinstance(model, nn.Module) else self.wrapped
        with gathered_once(weights, self.device) as ready:
            yield WithoutAdapters(ready) if isinstance(model, WithoutAdapters) else ready

    @property
    def loaded_policy(self) -> Policy:
        """The policy; only after `configure_model`."""
        assert self.policy is not None, "the policy is loaded in configure_model"
        return self.policy

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer."""
        return self.loaded_policy.tokenizer

    @property
    def vocabulary(self) -> Vocabulary:
        """The policy's special ids and candidates."""
        return self.loaded_policy.vocabulary

    @override
    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        """Logits of the policy, see `stabledrl.protocols.Denoiser`."""
        logits: Tensor = self.loaded_policy(*arguments, **options)
        return logits

    def new_cache(self) -> Any:
        """An empty cache of keys and values of the policy."""
        return self.loaded_policy.new_cache()

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        try:
            optimizer = self._make_optimizer([p for p in self.parameters() if p.requires_grad])
            # Before the schedule, whose warm-up lowers the rate.
            check_update_precision(optimizer)
            scheduler = None if self._make_scheduler is None else self._make_scheduler(optimizer)
        except UserInputError:
            raise
        except (ValueError, TypeError) as error:
            # Their constructors judge what the user wrote: a negative learning rate, betas out of range.
            raise UserInputError(f"optimizer or lr_scheduler refused its settings: {error}") from error
        if scheduler is None:
            return {"optimizer": optimizer}
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    @override
    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        wrapped = self.wrapped
        by_value = gradient_clip_algorithm not in (None, "norm")
        if not gradient_clip_val or by_value or not isinstance(wrapped, FullyShardedDataParallel):
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        with warnings.catch_warnings():
            # A process may hold no weights of a small model, and no update has gradients where nothing was learnt.
            warnings.filterwarnings("ignore", message=".*no gradients")
            wrapped.clip_grad_norm_(gradient_clip_val)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[POLICY_KEY] = self.loaded_policy.describe()
        if self.lora is not None:
            checkpoint[POLICY_KEY]["revision"] = self._reading["revision"]
            weights: Mapping[str, Tensor] = checkpoint["state_dict"]
            checkpoint["state_dict"] = {name: weight for name, weight in weights.items() if is_adapter(name)}

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved: Mapping[str, Any] | None = checkpoint.get(POLICY_KEY)
        if saved is None:
            raise UserInputError(f"the checkpoint has no entry {POLICY_KEY!r}: expected one that training wrote")
        check_fingerprint(saved["fingerprint"], self.loaded_policy.fingerprint)


def _check_strategy(strategy: Strategy, dtype: torch.dtype) -> None:
    """Refuses, before a model is loaded, ways to split weights that adapters cannot go."""
    if isinstance(strategy, FSDPStrategy) and dtype != torch.float32:
        raise UserInputError(
            f"dtype {str(dtype).removeprefix('torch.')} with lora: FSDP cannot pack such weights with float32 "
            f"adapters; use FSDP2 (configs/trainer/fsdp2.yaml) or dtype float32"
        )
    if getattr(strategy, "saves_directories", False):
        raise UserInputError(
            "checkpoints of lora are one small file, not one per process: leave the strategy's state_dict_type at "
            "full, or its save_distributed_checkpoint at false"
        )


def _check_reading(policy: str | NewPolicy | Policy, options: Mapping[str, Any]) -> None:
    """Refuses what no model could be read with. What depends on the model, its backbone refuses before the weights."""
    for name, least in (("block_size", 1), ("mask_token_id", 0)):
        if options[name] is not None and options[name] < least:
            raise UserInputError(f"{name} {options[name]} must be at least {least}, or null for the model's own")
    given = [f"{name} {value!r}" for name, value in options.items() if value is not None]
    if given and not isinstance(policy, str):
        raise UserInputError(f"{', '.join(given)} given, but the policy is not read from a directory or hub; leave out")
    if options["revision"] is not None and Path(str(policy)).exists():
        raise UserInputError(f"revision {options['revision']!r} given, but {policy!r} is a directory; leave it out")
