"""README's commands and examples run as they are written."""

import json
import re
import shlex
from pathlib import Path

import pytest
from benchmarks.recipe import table

from stabledrl.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = {
    "my_callbacks.py": "class AdvantageSpread",
    "my_rewards.py": "def starts_with_one",
    "my_objectives.py": "class Reinforce",
    "my_reward.yaml": "my_rewards.starts_with_one",
}
SMALL = ["--trainer.max_steps=2", "--data.init_args.prompts_per_rollout=2", "--rollout.group_size=2"]


def commands(verb: str) -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", README, re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith(f"stabledrl {verb} ")]


def status(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as end:  # --print_config
        return int(end.code or 0)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with what a clone has, and README's examples as files."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "checkpoints").mkdir()
    for model in ("tiny-sudoku", "tiny-sudoku-block"):
        (tmp_path / "checkpoints" / model).symlink_to(ROOT / "checkpoints" / model)
    blocks = re.findall(r"```(?:python|yaml)\n(.*?)```", README, re.S)
    for name, mark in FILES.items():
        (text,) = [block for block in blocks if mark in block]
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", commands("fit"), ids=" ".join)
def test_training_commands(clone: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status([*arguments, *SMALL]) == 0, capsys.readouterr().err


def test_test_export_and_generate_commands(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "-c", "configs/quickstart.yaml", *SMALL]) == 0
    for verb in ("test", "export", "generate"):
        (arguments,) = commands(verb)
        capsys.readouterr()
        assert main(arguments) == 0
    assert re.fullmatch(r"[1-4]{16}\n", capsys.readouterr().out)


def test_plan_commands(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = commands("plan")
    assert len(found) == 2
    for arguments in found:
        assert main(arguments) == 0
        assert "GiB per GPU" in capsys.readouterr().out


def test_every_example_file_is_named_in_the_text() -> None:
    assert [name for name in FILES if name not in README] == []


@pytest.mark.parametrize("recipe", ["quickstart", "tiny_block"])
def test_numbers_are_those_of_the_committed_results(recipe: str) -> None:
    lines = (ROOT / "benchmarks" / "results" / f"{recipe}.jsonl").read_text(encoding="utf-8").splitlines()
    assert table([json.loads(line) for line in lines]) in README
