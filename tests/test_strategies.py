"""The strategies' defaults; that they train is tested in `tests/distributed`."""

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.precision import FSDPPrecision
from torch.distributed.fsdp import ShardingStrategy

from stabledrl.errors import UserInputError
from stabledrl.strategies import FSDP, FSDP2


@pytest.mark.parametrize("name", ["FULL_SHARD", "NO_SHARD", "HYBRID_SHARD"])
def test_sharding_that_gathers_at_each_pass_or_never_is_refused(name: str) -> None:
    with pytest.raises(UserInputError, match=f"sharding_strategy '{name}' must be SHARD_GRAD_OP"):
        FSDP(sharding_strategy=name)  # type: ignore[arg-type]


def test_weights_stay_gathered_after_a_forward_pass() -> None:
    assert FSDP().sharding_strategy is ShardingStrategy.SHARD_GRAD_OP


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_gradients_and_buffers_are_float32_and_inputs_as_they_are(precision: str) -> None:
    strategy = FSDP()
    strategy.precision_plugin = FSDPPrecision(precision)  # type: ignore[arg-type]
    config = strategy.mixed_precision_config
    assert config is not None
    assert (config.param_dtype, config.reduce_dtype, config.buffer_dtype) == (
        torch.bfloat16,
        torch.float32,
        torch.float32,
    )
    assert not config.cast_forward_inputs
    assert not config.cast_root_forward_inputs


def test_nothing_is_cast_at_full_precision() -> None:
    assert FSDP().mixed_precision_config is None


@pytest.mark.parametrize("strategy", [FSDP, FSDP2])
def test_a_trainer_on_the_cpu_accepts_them(strategy: type[FSDP] | type[FSDP2]) -> None:
    trainer = Trainer(accelerator="cpu", devices=2, strategy=strategy(), logger=False, enable_checkpointing=False)
    assert type(trainer.strategy) is strategy
    assert trainer.world_size == 2


def test_minutes_are_the_time_that_processes_wait() -> None:
    for strategy in (FSDP(timeout_minutes=45), FSDP2(timeout_minutes=45)):
        assert strategy._timeout is not None
        assert strategy._timeout.total_seconds() == 2700
