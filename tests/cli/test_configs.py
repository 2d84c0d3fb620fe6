"""Every shipped file runs."""

from pathlib import Path

import pytest
import yaml
from tests.cli.runs import CONFIGS, QUICKSTART, small, write

from stabledrl.cli import main

FILES = sorted(CONFIGS.rglob("*.yaml"))
WHOLE = [file for file in FILES if file.stem.startswith("tiny_") or file == Path(QUICKSTART)]
BACKBONES = [file for file in FILES if file.parent.name == "backbone"]
ONE_PROCESS = ("cpu", "single_gpu", "single_gpu_lora")
SEVERAL = [file for file in FILES if file.parent.name == "trainer" and file.stem not in ONE_PROCESS]
"""Of several processes, which `tests/distributed` starts."""
OWN_DATA = ("aime", "countdown_chat", "gsm8k", "math", "reasoning_gym", "sudoku_chat", "table")
OTHER_TASKS = [file for file in FILES if file.parent.name == "task" and file.stem in OWN_DATA]
"""Of data or prompts that the tiny model cannot read; `tests/data` runs them."""
RECIPES = [file for file in FILES if file.parent.name == "recipe" and file not in WHOLE]
"""Of models that are too large to run here."""
LAYERS = [file for file in FILES if file not in (*WHOLE, *BACKBONES, *SEVERAL, *OTHER_TASKS, *RECIPES)]
CPU = ["--trainer.accelerator=cpu"]
SMALLER = {
    "DiffusionPolicyModule": ["--data.prompts_per_rollout=2", "--rollout.group_size=2", "--evaluation.at_start=false"],
    "SupervisedModule": ["--data.batch_size=4", "--data.task.init_args.train_size=64"],
}


def name(file: Path) -> str:
    return str(file.relative_to(CONFIGS))


def test_the_set_is_complete() -> None:
    assert {name(file) for file in FILES} >= {
        "quickstart.yaml",
        "recipe/tiny_sft.yaml",
        "objective/grpo.yaml",
        "objective/stabledrl.yaml",
        "task/countdown.yaml",
        "task/sudoku.yaml",
        "trainer/cpu.yaml",
        "trainer/single_gpu.yaml",
        "trainer/single_gpu_lora.yaml",
        "trainer/ddp.yaml",
        "trainer/fsdp.yaml",
        "trainer/fsdp2.yaml",
        "trainer/multi_node.yaml",
    }


@pytest.mark.parametrize("file", WHOLE, ids=name)
def test_whole_files_run(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONFIGS.parent)  # They name the shipped models relative to it.
    options = ["--trainer.max_steps=2", f"--trainer.default_root_dir={tmp_path}", "--trainer.enable_progress_bar=false"]
    smaller = SMALLER[yaml.safe_load(file.read_text())["model"]["class_path"]]
    assert main(["fit", "-c", str(file), *options, *smaller]) == 0
    assert list(tmp_path.glob("checkpoints/*/version_0/last.ckpt"))


@pytest.mark.parametrize("file", LAYERS, ids=name)
def test_layers_run_over_the_quickstart_and_take_effect(file: Path, tmp_path: Path) -> None:
    if file.stem.endswith("lora"):
        pytest.importorskip("peft")
    options = (
        ["--evaluation.at_start=false", *CPU] if file.parent.name == "trainer" else ["--evaluation.at_start=false"]
    )
    assert main(["fit", *small(tmp_path), "-c", str(file), *options]) == 0
    ran = yaml.safe_load((tmp_path / "logs/quickstart/version_0/config.yaml").read_text())
    stated = yaml.safe_load(file.read_text())
    if file.parent.name == "trainer":
        stated["trainer"].pop("accelerator")
    assert differences(stated, ran) == []


@pytest.mark.parametrize("file", [*BACKBONES, *SEVERAL, *OTHER_TASKS, *RECIPES], ids=name)
def test_what_cannot_run_here_is_understood(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights too large, data of a hub, several processes: how each of these works is tested elsewhere."""
    with pytest.raises(SystemExit) as end:
        main(["fit", *small(tmp_path), "-c", str(file), "--print_config"])
    assert end.value.code == 0
    assert differences(yaml.safe_load(file.read_text()), yaml.safe_load(capsys.readouterr().out)) == []


def differences(stated: object, ran: object, path: str = "") -> list[str]:
    """Where a run's settings are not what a file states; class names may be longer."""
    if isinstance(stated, dict) and isinstance(ran, dict):
        return [found for key, value in stated.items() for found in differences(value, ran.get(key), f"{path}.{key}")]
    if isinstance(stated, list) and isinstance(ran, list) and len(stated) == len(ran):
        return [found for pair in zip(stated, ran) for found in differences(*pair, path)]
    if path.endswith("class_path"):
        return [] if str(ran).rpartition(".")[2] == str(stated).rpartition(".")[2] else [path]
    return [] if stated == ran else [f"{path}: {stated!r} became {ran!r}"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_layers_combine_in_any_order(order: tuple[int, ...], tmp_path: Path) -> None:
    layers = [CONFIGS / part for part in ("objective/grpo.yaml", "task/countdown.yaml", "trainer/cpu.yaml")]
    chosen = [part for index in order for part in ("-c", str(layers[index]))]
    extra = write(tmp_path, "extra.yaml", "trainer: {max_steps: 1}")
    assert main(["fit", *small(tmp_path), *chosen, "-c", extra, "--evaluation.at_start=false"]) == 0
    assert (tmp_path / "checkpoints/quickstart/version_0/last.ckpt").is_file()
