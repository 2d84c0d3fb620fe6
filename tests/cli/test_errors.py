"""A user's mistake ends in one line that says what was given and what would be right."""

import signal
from pathlib import Path

import pytest
import torch
from tests.cli.runs import QUICKSTART, error_of, small, write

from stabledrl import backbones
from stabledrl.checkpoints import read_checkpoint
from stabledrl.cli import main, training

OBJECTIVE = "model: {init_args: {objective: {class_path: %s, init_args: {%s}}}}"
TASK = "data: {init_args: {tasks: [{class_path: %s, init_args: {%s}}]}}"

FILES = [
    ("modle: {policy: x}", ["'modle'", "did you mean model?"]),
    ("modle: {}", ["'modle'", "did you mean model?"]),
    ("rollout: {group_sizes: 3}", ["rollout.group_sizes", "did you mean rollout.group_size?", "temperature"]),
    ("trainer: {max_stesp: 3}", ["trainer.max_stesp", "did you mean trainer.max_steps?"]),
    ("rollout: {group_size: many}", ["rollout.group_size", "a whole number", "'many'"]),
    ("model: {init_args: {polcy: x}}", ["model.init_args.polcy", "did you mean policy?"]),
    (OBJECTIVE % ("StableDLR", ""), ["model.init_args.objective", "'StableDLR'", "did you mean StableDRL?"]),
    (OBJECTIVE % ("Xyz", ""), ["no Objective is called 'Xyz'", "known: ", "GRPO", "SPG", "StableDRL"]),
    (OBJECTIVE % ("StableDRL", "eps_lo: 3"), ["objective.init_args.eps_lo", "did you mean eps_low?", "surrogate"]),
    (OBJECTIVE % ("StableDRL", "eps_low: abc"), ["objective.init_args.eps_low", "a number or null", "'abc'"]),
    (OBJECTIVE % ("StableDRL", "surrogate: elbow"), ["surrogate", "one of sandwich, elbo", "'elbow'"]),
    (OBJECTIVE % ("torch.nn.Linear", ""), ["'torch.nn.Linear' is no Objective", "GRPO", "StableDRL"]),
    (OBJECTIVE % ("own_missing.Thing", ""), ["own_missing", "cannot import", "GRPO", "StableDRL"]),
    (OBJECTIVE % ("GRPO", "eps_low: -1"), ["-1"]),
    (TASK % ("Sudoko", ""), ["data.init_args.tasks", "did you mean Sudoku?"]),
    (TASK % ("Sudoku", "train_sz: 3"), ["train_sz", "did you mean train_size?"]),
    (TASK % ("Sudoku", "train_size: abc"), ["train_size", "a whole number", "'abc'"]),
    (TASK % ("Sudoku", "rewards: [SudokGrid]"), ["rewards", "did you mean SudokuGrid?"]),
    (TASK % ("Sudoku", "rewards: [own_missing.f]"), ["own_missing"]),
    ("trainer: {callbacks: [{class_path: DriftMonitor}]}", ["trainer.callbacks", "PolicyDriftMonitor"]),
    ("model: {class_path: DiffusionPolicy}", ["model", "did you mean DiffusionPolicyModule?", "SupervisedModule"]),
    ("run_name: a/b", ["run_name", "'a/b'"]),
    ("num_threads: 0", ["num_threads 0", "at least 1"]),
]


@pytest.mark.parametrize(("text", "parts"), FILES, ids=[text[:60] for text, _ in FILES])
def test_mistakes_in_a_file(
    text: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backbones.loading, "load_model", lambda *_: pytest.fail("the model was loaded"))
    error = error_of(["fit", *small(tmp_path), "-c", write(tmp_path, "more.yaml", text)], capsys)
    assert [part for part in parts if part not in error] == [], error


OPTIONS = [
    (["--rollout.group_size", "1"], ["group_size 1", "at least 2"]),
    (["--trainer.max_steps", "abc"], ["trainer.max_steps", "a whole number", "'abc'"]),
    (["--trainer.max_stesp", "3"], ["--trainer.max_stesp", "did you mean --trainer.max_steps?"]),
    (["--colour", "red"], ["--colour", "rollout", "trainer"]),
    (["extra"], ["extra"]),
    (["--model.objective", "StableDLR"], ["model.init_args.objective", "did you mean StableDRL?"]),
    (["--model.objective.eps_lo", "1"], ["eps_lo", "did you mean eps_low?"]),
    (["--model.optimizer", "torch.optim.AdamX"], ["AdamX", "did you mean Adam"]),
    (["--model.policy", "/nowhere/model"], ["'/nowhere/model'", "config.json"]),
    (["--model.policy", "null"], ["model", "required", "policy"]),
    (["--ckpt_path", "/nowhere/x.ckpt"], ["'/nowhere/x.ckpt'", ".ckpt"]),
    (["--ckpt_path", "last"], ["last.ckpt", "initial"]),
    (["--trainer.accumulate_grad_batches", "3"], ["accumulate_grad_batches 3", "1, 2, 4"]),
    (["--seed_everything", "-1"], ["seed_everything -1", "4294967295"]),
    (["--seed_everything", "99999999999"], ["seed_everything 99999999999"]),
    (["--model.objective", "TraceRL"], ["TraceRL needs shared_masks", "share_masks: true"]),
    (["--trainer.accelerator", "gpuu"], ["gpuu", "cpu"]),
    (["--trainer.precision", "17"], ["trainer.precision", "bf16-mixed", "'17'"]),
    (["--trainer.default_root_dir", __file__], ["default_root_dir", "no directory"]),
    (["-c", "/nowhere/x.yaml"], ["'/nowhere/x.yaml'"]),
    (["-c", QUICKSTART.replace("quickstart", "quickstrat")], ["did you mean quickstart.yaml?"]),
    (["-c"], ["--config"]),
]


@pytest.mark.parametrize(("options", "parts"), OPTIONS, ids=[" ".join(options)[-60:] for options, _ in OPTIONS])
def test_mistakes_on_the_command_line(
    options: list[str],
    parts: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backbones.loading, "load_model", lambda *_: pytest.fail("the model was loaded"))
    error = error_of(["fit", *small(tmp_path), *options], capsys)
    assert [part for part in parts if part not in error] == [], error


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("model: [1, {\n x: :\n", ["bad.yaml", "line 2", "column 5"]),
        ("a: b: c\n", ["bad.yaml", "line 1"]),
        ("- 1\n- 2\n", ["bad.yaml", "list"]),
        ("just text\n", ["bad.yaml", "str"]),
        ("# nothing\n", ["bad.yaml", "empty"]),
    ],
)
def test_files_that_hold_no_settings(
    text: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of(["fit", *small(tmp_path), f"--config={write(tmp_path, 'bad.yaml', text)}"], capsys)
    assert [part for part in parts if part not in error] == [], error


def test_a_file_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    assert "bad.yaml" in error_of(["fit", "-c", str(tmp_path / "bad.yaml")], capsys)


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_required_settings(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of([command], capsys)
    assert "model" in error
    assert "data" in error
    assert "-c configs/quickstart.yaml" in error


def test_required_arguments_of_a_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(["fit", "-c", write(tmp_path, "a.yaml", "model: DiffusionPolicyModule")], capsys)
    assert error == "model: required but not given: policy, objective, likelihood, sampler"


@pytest.mark.parametrize(("given", "close"), [("fti", "fit"), ("exprot", "export"), ("tset", "test")])
def test_unknown_command(given: str, close: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of([given], capsys)
    assert f"no command {given!r}; did you mean {close}?" in error
    assert "fit, validate, test, predict, plan, generate, export" in error


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.99])
@pytest.mark.parametrize("command", ["fit", "test"])
def test_truncated_checkpoint(
    command: str, kept: float, tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = checkpoint.read_bytes()
    broken = tmp_path / "broken.ckpt"
    broken.write_bytes(whole[: int(kept * len(whole)) if kept < 1 else int(kept)])
    error = error_of([command, *small(tmp_path), f"--ckpt_path={broken}"], capsys)
    assert "broken.ckpt" in error
    assert "complete" in error


def test_checkpoint_of_another_model(tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = torch.load(checkpoint, weights_only=True)
    content["policy"]["fingerprint"]["vocab_size"] = 999
    torch.save(content, tmp_path / "other.ckpt")
    error = error_of(["test", *small(tmp_path), f"--ckpt_path={tmp_path / 'other.ckpt'}"], capsys)
    assert "vocab_size: checkpoint 999" in error


def test_file_that_is_no_checkpoint_of_the_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"weights": torch.zeros(1)}, tmp_path / "other.ckpt")
    assert "not a checkpoint" in error_of(["test", *small(tmp_path), f"--ckpt_path={tmp_path / 'other.ckpt'}"], capsys)


REWARDS = """
def too_few(completions, **_):
    return [1.0] * (len(completions) - 1)

def words(completions, **_):
    return ["good"] * len(completions)

def column(completions, colour, **_):
    return [1.0] * len(completions)

def broken(completions, **_):
    return [1 / 0 for _ in completions]
"""


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("too_few", ["too_few", "3 values", "4 completions"]),
        ("words", ["words", "'good'", "number"]),
        ("column", ["column", "colour", "'sudoku'", "puzzle"]),
    ],
)
def test_rewards_that_do_not_fit(
    name: str, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "own_rewards.py", REWARDS)
    more = write(tmp_path, "more.yaml", TASK % ("Sudoku", f"evaluation_size: 4, rewards: [own_rewards.{name}]"))
    options = ["-c", more, "--evaluation.at_start=false"]
    error = error_of(["fit", *small(tmp_path), *options], capsys)
    assert [part for part in parts if part not in error] == [], error


def test_a_bug_of_a_users_function_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "own_rewards.py", REWARDS)
    more = write(tmp_path, "more.yaml", TASK % ("Sudoku", "rewards: [own_rewards.broken]"))
    with pytest.raises(RuntimeError, match="broken raised ZeroDivisionError") as caught:
        main(["fit", *small(tmp_path), "-c", more])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_monitor_that_stops_the_run_gives_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        "own_monitor.py",
        "from lightning.pytorch import Callback\nfrom stabledrl.callbacks import TrainingStoppedError\n"
        "class Stop(Callback):\n    def on_train_batch_end(self, *args):\n"
        "        raise TrainingStoppedError('seen enough')\n",
    )
    assert main(["fit", *small(tmp_path), "--trainer.callbacks=own_monitor.Stop"]) == 3
    assert capsys.readouterr().err.strip().endswith("stabledrl fit: stopped: seen enough")


SIGNALLER = """
import os
import signal
from lightning.pytorch import Callback

class Signal(Callback):
    def __init__(self, number: int, twice: bool = False):
        self.number, self.count = number, 2 if twice else 1

    def on_train_batch_start(self, *args):
        for _ in range(self.count):
            os.kill(os.getpid(), self.number)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "own_signal.py", SIGNALLER)
    options = ["--trainer.callbacks=own_signal.Signal", f"--trainer.callbacks.number={int(number)}"]
    assert main(["fit", *small(tmp_path), "--trainer.max_steps=50", *options]) == 128 + number
    saved = read_checkpoint(tmp_path / "checkpoints/quickstart/version_0/last.ckpt")
    assert saved["global_step"] == 1


def test_a_second_interrupt_ends_the_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "own_signal.py", SIGNALLER)
    options = [
        "--trainer.callbacks=own_signal.Signal",
        "--trainer.callbacks.number=2",
        "--trainer.callbacks.twice=true",
    ]
    assert main(["fit", *small(tmp_path), *options]) == 130


def test_an_interrupt_outside_of_training_gives_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "import_extension_points", interrupt)
    assert main(["fit"]) == 130
    assert capsys.readouterr().err == "stabledrl fit: interrupted\n"
