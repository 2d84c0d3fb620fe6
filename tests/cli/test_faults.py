"""What goes wrong while a run goes on is told once, in a line or with one traceback."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.runs import small, write
from tests.distributed.launch import environments, together

from stabledrl.cli import main

RAISES = """
import os

def raises(completions, **columns):
    if os.environ["RANK"] in "{}":
        raise LookupError("nobody there")
    return [0.0] * len(completions)
"""


def test_a_full_disk_ends_the_run_with_a_line_and_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stabledrl", "fit", *small(tmp_path)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("stabledrl fit: error: cannot write ")
    assert "File too large; the checkpoints before are intact" in done.stderr
    assert not list((tmp_path / "checkpoints").rglob("*.ckpt*"))


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0), ("7", 0)])
def test_a_mistake_that_all_processes_see_is_told_by_the_first_of_a_node(
    rank: str, lines: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    assert main(["fit", *small(tmp_path, "--rollout.group_size=1")]) == 2
    assert capsys.readouterr().err.count("group_size 1") == lines


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["1", "01"])
def test_a_failure_has_one_traceback_of_a_process_that_failed(ranks: str, tmp_path: Path) -> None:
    write(tmp_path, "own_raises.py", RAISES.format(ranks))
    task = "{class_path: Sudoku, init_args: {train_size: 20, evaluation_size: 8, rewards: [own_raises.raises]}}"
    more = write(tmp_path, "more.yaml", f"data: {{init_args: {{tasks: [{task}]}}}}\nevaluation: {{at_start: false}}")
    options = small(tmp_path, "-c", more, "--trainer.strategy=ddp", "--trainer.devices=2")
    command = [sys.executable, "-m", "stabledrl", "fit", *options]
    finished = together(command, environments(2), cwd=tmp_path, timeout=300)
    errors = [process.stderr for process in finished]
    assert [process.returncode for process in finished] == [1, 1], errors
    (telling,) = [str(rank) for rank, error in enumerate(errors) if "Traceback (most recent call last)" in error]
    assert telling in ranks
    assert "LookupError: nobody there" in errors[int(telling)]
    assert f"process {ranks[0]} of 2, rollout 0" in errors[int(telling)]
