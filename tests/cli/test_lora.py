"""The shipped layer for one small GPU, from the command line."""

import shutil
from pathlib import Path

import pytest
from tests.cli.runs import CONFIGS, MODEL, error_of, small

from stabledrl.backbones import load_policy
from stabledrl.backbones.lora import is_adapter
from stabledrl.checkpoints import POLICY_KEY, read_checkpoint
from stabledrl.cli import main

pytest.importorskip("peft")

LAYER = ["-c", str(CONFIGS / "trainer" / "single_gpu_lora.yaml"), "--trainer.accelerator=cpu"]


def test_the_shipped_layer_trains_with_another_optimizer_and_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = Path(shutil.copytree(MODEL, tmp_path / "base"))
    # Warm and large enough for groups to differ, so that the adapters move.
    warm = ["--rollout.group_size=8", "--rollout.temperature=2"]
    options = [*small(tmp_path, *LAYER, *warm, f"--model.policy={base}"), "--model.optimizer=torch.optim.Adafactor"]
    assert main(["fit", *options, "--evaluation.at_start=false"]) == 0
    checkpoint = tmp_path / "checkpoints/quickstart/version_0/last.ckpt"
    content = read_checkpoint(checkpoint)
    assert all(is_adapter(name) for name in content["state_dict"])
    assert {"row_var", "col_var"} <= content["optimizer_states"][0]["state"][0].keys()
    assert content[POLICY_KEY]["fingerprint"]["base_dtype"] == "bfloat16"
    assert main(["test", *options, "--evaluation_table.samples_per_prompt=1"]) == 0
    moved = str(base.rename(tmp_path / "moved"))
    assert "--base names where it is" in error_of(["export", str(checkpoint), str(tmp_path / "model")], capsys)
    assert main(["export", str(checkpoint), str(tmp_path / "model"), "--base", moved]) == 0
    assert main(["generate", str(tmp_path / "model"), "0320020430402010=", "--completion_length=16"]) == 0
    assert not load_policy(tmp_path / "model").adapters


def test_the_command_line_tells_of_a_wrong_target_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = small(tmp_path, *LAYER, "--model.lora.target_modules=[q_prj]")
    assert "lora.target_modules 'q_prj' is not one of down_proj" in error_of(["fit", *options], capsys)
    options = small(tmp_path, *LAYER, "--model.lora.rank=0")
    assert "lora.rank 0 must be at least 1" in error_of(["fit", *options], capsys)
