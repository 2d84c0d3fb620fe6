"""Checkpoints and strategies that do not go with adapters are refused."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer
from tests.adapters import SETTINGS, lora_module
from tests.training import tiny_module, tiny_policy, train

from stabledrl.backbones.lora import LoRA
from stabledrl.callbacks import RunCheckpoint
from stabledrl.errors import UserInputError
from stabledrl.strategies import FSDP, FSDP2

pytest.importorskip("peft")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lora": LoRA(rank=2, alpha=8)}, "lora_rank: checkpoint 4, policy 2"),
        ({"lora": LoRA(**SETTINGS, target_modules=["q_proj"])}, r"lora_target_modules: .*policy \['q_proj'\]"),
        ({"lora": None}, "base_weights: checkpoint '.*', policy None.*lora_rank: checkpoint 4, policy None"),
        ({"policy": tiny_policy(seed=1)}, r"another model \(base_weights: checkpoint '\w+', policy '\w+'\)"),
    ],
)
def test_a_checkpoint_of_other_adapters_or_weights_is_refused(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    train(lora_module(), RunCheckpoint(dirpath=str(tmp_path)), steps=1)
    with pytest.raises(UserInputError, match=told):
        train(lora_module(**options), ckpt_path=tmp_path / "last.ckpt")


def test_a_checkpoint_of_whole_weights_is_refused(tmp_path: Path) -> None:
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path)), steps=1)
    with pytest.raises(UserInputError, match="lora_rank: checkpoint None, policy 4"):
        train(lora_module(), ckpt_path=tmp_path / "last.ckpt")


@pytest.mark.parametrize(
    ("strategy", "dtype", "told"),
    [
        (lambda: FSDP(state_dict_type="sharded"), "float32", "one small file, not one per process"),
        (lambda: FSDP2(save_distributed_checkpoint=True), "float32", "one small file, not one per process"),
        (FSDP, "bfloat16", "dtype bfloat16 with lora: FSDP cannot pack .* use FSDP2"),
    ],
)
def test_what_a_strategy_cannot_do_is_refused_before_a_model_is_loaded(strategy: Any, dtype: Any, told: str) -> None:
    module = lora_module(policy="not/there", dtype=dtype)
    module.trainer = Trainer(strategy=strategy(), accelerator="cpu", devices=1, logger=False)
    with pytest.raises(UserInputError, match=told):
        module.setup("fit")
