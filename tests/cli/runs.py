"""Small runs of the command line, in this process."""

from pathlib import Path

import pytest

from stabledrl.cli import main

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
QUICKSTART = str(CONFIGS / "quickstart.yaml")
MODEL = str(ROOT / "checkpoints" / "tiny-sudoku")
SMALL = f"""
model:
  init_args:
    policy: {MODEL}
data:
  init_args:
    tasks:
      - class_path: Sudoku
        init_args: {{train_size: 20, evaluation_size: 8}}
    prompts_per_rollout: 2
rollout:
  group_size: 2
evaluation:
  every_n_steps: null
trainer:
  max_steps: 2
  enable_progress_bar: false
"""


def small(directory: Path, *more: str) -> list[str]:
    """Options of a quickstart of two steps with all outputs below the directory."""
    return [
        "-c",
        QUICKSTART,
        "-c",
        write(directory, "small.yaml", SMALL),
        f"--trainer.default_root_dir={directory}",
        *more,
    ]


def write(directory: Path, name: str, text: str) -> str:
    (directory / name).write_text(text, encoding="utf-8")
    return str(directory / name)


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The error that a command ends with: one line, exit code 2."""
    capsys.readouterr()
    code = main(arguments)
    lines = capsys.readouterr().err.strip().splitlines()
    prefix = f"stabledrl {arguments[0]}: error: "
    assert code == 2
    assert [line for line in lines if ": error: " in line] == lines[-1:], lines
    assert lines[-1].startswith(prefix)
    assert len(lines[-1]) < 600
    assert "Traceback" not in "".join(lines)
    return lines[-1].removeprefix(prefix)
