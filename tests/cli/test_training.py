"""fit, validate, test and predict: layering, outputs, checkpoints, users' own classes, what is printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.cli.runs import CONFIGS, MODEL, QUICKSTART, small, write

from stabledrl.checkpoints import read_checkpoint
from stabledrl.cli import main

CALLBACKS = """
from pathlib import Path
from lightning.pytorch import Callback

class Note(Callback):
    def __init__(self, path: str):
        self.path = path

    def on_fit_start(self, trainer, module):
        Path(self.path).write_text("\\n".join(type(callback).__name__ for callback in trainer.callbacks))
"""
OBJECTIVES = """
from stabledrl.objectives import GRPO

class Louder(GRPO):
    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def __call__(self, current, rollouts, **kwargs):
        output = super().__call__(current, rollouts, **kwargs)
        return type(output)(loss=output.loss * self.factor, metrics=output.metrics)
"""
REWARDS = """
def ones(completions, **columns):
    return [float(text.count("1")) for text in completions]
"""


def printed_config(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict:
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(["fit", *arguments, "--print_config"])
    assert end.value.code == 0
    return yaml.safe_load(capsys.readouterr().out)


def scalars(directory: Path) -> dict[str, list[float]]:
    events = EventAccumulator(str(directory)).Reload()
    return {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_print_config_alone_shows_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    config = printed_config([], capsys)
    assert {"model", "data", "rollout", "evaluation", "checkpoint", "trainer", "run_name"} <= set(config)
    assert config["rollout"]["group_size"] == 8


def test_later_files_win_over_earlier_ones_and_options_over_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write(tmp_path, "a.yaml", "rollout: {group_size: 3, temperature: 0.5}\nrun_name: a\n")
    second = write(tmp_path, "b.yaml", "rollout: {group_size: 4}\n")
    config = printed_config(["-c", QUICKSTART, "-c", first, "-c", second, "--run_name=c"], capsys)
    assert config["rollout"]["group_size"] == 4
    assert config["rollout"]["temperature"] == 0.5
    assert config["rollout"]["updates_per_rollout"] == 2
    assert config["run_name"] == "c"


@pytest.mark.parametrize(("first", "second"), [("grpo", "stabledrl"), ("stabledrl", "grpo")])
def test_another_objective_leaves_nothing_of_the_one_before(
    first: str, second: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [QUICKSTART, *(str(CONFIGS / "objective" / f"{name}.yaml") for name in (first, second))]
    layered = printed_config([part for file in files for part in ("-c", file)], capsys)
    alone = yaml.safe_load(Path(files[-1]).read_text())["model"]["init_args"]
    objective = layered["model"]["init_args"]["objective"]
    assert objective["class_path"].endswith(f".{alone['objective']['class_path']}")
    assert objective["init_args"] == alone["objective"]["init_args"]
    likelihood = layered["model"]["init_args"]["likelihood"]["init_args"]
    assert likelihood["eubo_beta"] == alone["likelihood"]["init_args"]["eubo_beta"]
    assert likelihood["masking"] == "complementary"


@pytest.mark.parametrize("command", ["", "fit", "validate", "test", "predict", "generate", "export"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    if command:
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
    else:
        assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert f"stabledrl {command or 'COMMAND'}" in out.replace("stabledrl [options] ", "stabledrl ")


def test_no_command_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "configs/quickstart.yaml" in capsys.readouterr().out


def test_users_own_classes_plug_in_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    for name, text in (("callbacks", CALLBACKS), ("objectives", OBJECTIVES), ("rewards", REWARDS)):
        write(tmp_path, f"own_{name}.py", text)
    more = write(
        tmp_path,
        "more.yaml",
        "model: {init_args: {objective: {class_path: own_objectives.Louder, init_args: {factor: 2.0}}}}\n"
        "data: {init_args: {tasks: [{class_path: Sudoku, init_args: {rewards: [own_rewards.ones]}}]}}\n"
        "trainer: {callbacks: [{class_path: own_callbacks.Note, init_args: {path: note.txt}}]}\n",
    )
    assert main(["fit", *small(tmp_path, "-c", more)]) == 0
    names = (tmp_path / "note.txt").read_text().splitlines()
    sections = {"GroupRollout", "TaskEvaluation", "GradientSpikeMonitor", "RewardCollapseMonitor", "SampleTable"}
    assert {"Note", "RunCheckpoint", "GracefulStop", *sections} <= set(names)
    logged = scalars(tmp_path / "logs/quickstart/version_0")
    assert max(logged["val/sudoku/reward"]) > 1  # Only the user's reward exceeds 1.


def test_outputs_lie_below_the_root_and_versions_count_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for version in (0, 1):
        assert main(["fit", *small(tmp_path)]) == 0
        out = capsys.readouterr().out
        logs = tmp_path / f"logs/quickstart/version_{version}"
        assert f"logs: {logs}" in out
        assert list(logs.glob("events.*"))
        assert (tmp_path / f"checkpoints/quickstart/version_{version}/last.ckpt").is_file()
    assert main(["fit", "-c", str(logs / "config.yaml")]) == 0  # A run repeated from its record gets its own number.
    assert (tmp_path / "checkpoints/quickstart/version_2/last.ckpt").is_file()
    assert list(elsewhere.iterdir()) == []


def test_test_takes_the_newest_checkpoint_and_finds_what_fit_found_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = small(tmp_path, "--trainer.max_steps=4", "--model.optimizer.lr=0.01", "--model.lr_scheduler=null")
    assert main(["fit", *options]) == 0
    last = {name: values[-1] for name, values in scalars(tmp_path / "logs/quickstart/version_0").items()}
    for command, prefix in (("test", "test"), ("validate", "val")):
        capsys.readouterr()
        assert main([command, *options]) == 0
        assert f"checkpoint: {tmp_path / 'checkpoints/quickstart/version_0/last.ckpt'}" in capsys.readouterr().out
        found = scalars(tmp_path / f"logs/quickstart/{command}/version_0")
        for name in ("accuracy", "reward"):
            assert found[f"{prefix}/sudoku/{name}"] == pytest.approx([last[f"val/sudoku/{name}"]], abs=1e-6)


def test_the_newest_of_several_runs_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["fit", *small(tmp_path, "--trainer.max_steps=1")]) == 0
    capsys.readouterr()
    assert main(["test", *small(tmp_path)]) == 0
    assert "version_1/last.ckpt" in capsys.readouterr().out


def test_initial_stands_for_the_start_model(trained: Path, tmp_path: Path) -> None:
    first = scalars(trained / "logs/quickstart/version_0")["val/sudoku/reward"][0]
    assert main(["test", *small(tmp_path, "--ckpt_path=initial")]) == 0
    found = scalars(tmp_path / "logs/quickstart/test/version_0")
    assert found["test/sudoku/reward"] == pytest.approx([first], abs=1e-6)


def test_last_resumes(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    assert main(["fit", *small(whole, "--trainer.max_steps=3")]) == 0
    assert main(["fit", *small(parts, "--trainer.max_steps=1")]) == 0
    assert main(["fit", *small(parts, "--trainer.max_steps=3", "--ckpt_path=last")]) == 0
    ours = read_checkpoint(parts / "checkpoints/quickstart/version_1/last.ckpt")
    reference = read_checkpoint(whole / "checkpoints/quickstart/version_0/last.ckpt")
    assert ours["global_step"] == 3
    for name, tensor in reference["state_dict"].items():
        assert torch.equal(tensor, ours["state_dict"][name])


def test_predict_writes_a_line_per_held_out_prompt(
    trained: Path, tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", *small(tmp_path, f"--ckpt_path={checkpoint}")]) == 0
    file = tmp_path / "logs/quickstart/predict/version_0/predict_samples.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 8
    assert {"prompt", "completion"} <= set(rows[0])


def test_a_run_says_what_matters_and_nothing_else(tmp_path: Path) -> None:
    """As a process of its own: only there do messages go where users see them."""
    command = [sys.executable, "-m", "stabledrl", "fit", *small(tmp_path, "--trainer.enable_progress_bar=true")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == f"model: {MODEL} (native, 126,912 parameters, float32, cpu)"
    assert lines[1] == "task: sudoku (20 training prompts, 8 held-out prompts)"
    assert lines[2] == f"logs: {tmp_path / 'logs/quickstart/version_0'}"
    assert lines[-1] == f"checkpoint: {tmp_path / 'checkpoints/quickstart/version_0/last.ckpt'}"
    for noise in ("Tip", "litlogger", "TPU", "LeafSpec", "Loading weights", "eval mode", "Warning", "site-packages"):
        assert noise not in done.stderr, done.stderr
    assert re.search(r"val/sudoku/accuracy [\d.]+ \(before training [\d.]+\)", done.stderr)
    bars = [line for line in lines if line.startswith("training")]
    assert re.match(r"training: 100%.*2/2 \[\d\d:\d\d<\d\d:\d\d, .*reward=[\d.]+\]", bars[-1]), bars


def test_the_exit_code_is_the_process_s() -> None:
    command = [sys.executable, "-m", "stabledrl", "fti"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("stabledrl fti: error: no command 'fti'; did you mean fit?")
    assert done.stderr.count("\n") == 1
