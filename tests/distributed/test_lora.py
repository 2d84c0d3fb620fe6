"""Adapters in two processes: trained, saved and resumed as in one, whatever is sharded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.adapters import TOKENS
from tests.distributed.launch import launch
from tests.distributed.scenarios import SCENARIOS, run
from tests.training import same, tiny_policy

from stabledrl.backbones import load_policy
from stabledrl.backbones.lora import LoRA, is_adapter
from stabledrl.checkpoints import read_checkpoint
from stabledrl.export import export_checkpoint, export_policy

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process leaves."""
    directory = tmp_path_factory.mktemp("alone")
    run(directory, lora=LoRA(rank=2, alpha=4, dropout=0.1), **SCENARIOS["split groups"])
    return directory / "last.ckpt"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp2"])
@torch.no_grad()
def test_two_processes_train_the_adapters_of_one_and_nothing_else(strategy: str, alone: Path, tmp_path: Path) -> None:
    for process in launch(strategy, str(tmp_path), "adapters"):
        assert process.returncode == 0, process.stderr[-5000:]
    moved = False
    for rank in (0, 1):
        own: dict[str, Any] = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)["adapters"]
        assert same(own["whole"]["weights"], own["rest"]["weights"])
        losses = [[metrics["train/loss"] for metrics in own[part]["metrics"]] for part in ("whole", "rest")]
        assert losses[0][3:] == losses[1]
        for trained, first, last in zip(own["trained"], own["first"]["weights"], own["whole"]["weights"]):
            assert trained or torch.equal(first, last)
            moved |= not torch.equal(first, last)
    assert moved
    expected = read_checkpoint(alone)["state_dict"]
    for part in ("whole", "rest"):
        adapters = read_checkpoint(tmp_path / "adapters" / part / "last.ckpt")["state_dict"]
        assert all(is_adapter(name) for name in adapters)
        assert adapters.keys() == expected.keys()
        for name, weight in expected.items():
            torch.testing.assert_close(adapters[name], weight, rtol=0, atol=2e-5)
    base = export_policy(tiny_policy(num_layers=2), tmp_path / "base")
    one = load_policy(export_checkpoint(alone, tmp_path / "one", base=base))
    two = load_policy(export_checkpoint(tmp_path / "adapters" / "whole" / "last.ckpt", tmp_path / "two", base=base))
    torch.testing.assert_close(two(TOKENS), one(TOKENS), rtol=0, atol=1e-4)
    assert (two(TOKENS) - load_policy(base)(TOKENS)).abs().max() > 1e-2
