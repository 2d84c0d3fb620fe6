"""A kill or a full disk at any moment of saving: the newest complete checkpoint is found, and resumed exactly."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.killed import halved, killed_at, killed_in, parts, with_full_disk
from tests.training import same, tiny_module, train, weights

import stabledrl.callbacks.run_checkpoint
import stabledrl.callbacks.saving
import stabledrl.checkpoints
from stabledrl.callbacks import RewardCollapseMonitor, RunCheckpoint
from stabledrl.checkpoints import find_last_checkpoint, put_in_place, read_checkpoint, read_rest, written_whole

MOMENTS = {
    "before it is written": (stabledrl.callbacks.saving.torch, "save", 2, False, 1),
    "when it is written": (stabledrl.callbacks.saving.torch, "save", 2, True, 1),
    "before it is on disk": (stabledrl.checkpoints, "_sync", 5, False, 1),
    "before it takes its place": (Path, "replace", 3, False, 1),
    "when it has taken its place": (Path, "replace", 3, True, 2),
    "before last.ckpt is named": (os, "link", 2, False, 2),
    "before last.ckpt takes its place": (Path, "replace", 4, False, 2),
    "when last.ckpt has taken its place": (Path, "replace", 4, True, 2),
    "before the old one is removed": (RunCheckpoint, "_remove_checkpoint", 1, False, 2),
    "when the old one is removed": (RunCheckpoint, "_remove_checkpoint", 1, True, 2),
}
"""In the second checkpoint of a run that saves after every step and keeps one: a call, and the step that is found."""


def run(directory: Path, steps: int, resume: Path | None = None, *callbacks: Any) -> Any:
    module = tiny_module()
    checkpoint = RunCheckpoint(dirpath=str(directory), every_n_train_steps=1)
    train(module, *callbacks, checkpoint, steps=steps, updates=3, ckpt_path=resume)
    return weights(module)


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_while_saving_the_run_goes_on_from_the_newest_complete_checkpoint(tmp_path: Path, moment: str) -> None:
    owner, name, call, after, step = MOMENTS[moment]
    killed_at(owner, name, call, lambda: run(tmp_path / "a", 4), after=after)
    found = find_last_checkpoint(tmp_path)
    assert found is not None
    assert read_checkpoint(found)["global_step"] == step
    assert same(run(tmp_path / "b", 4, found), run(tmp_path / "whole", 4))


def test_killed_in_the_middle_of_the_file_nothing_of_it_is_taken_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, 2)
    before = (tmp_path / "last.ckpt").read_bytes()
    monkeypatch.setattr(stabledrl.callbacks.saving.torch, "save", halved(torch.save))
    killed_in(lambda: run(tmp_path, 4, tmp_path / "last.ckpt"))
    (left,) = parts(tmp_path)
    assert left.stat().st_size < len(before)
    assert find_last_checkpoint(tmp_path) == tmp_path / "last.ckpt"
    assert (tmp_path / "last.ckpt").read_bytes() == before


@pytest.mark.parametrize("largest_file", [100, 20_000])
def test_a_full_disk_leaves_the_checkpoints_before_and_says_so_in_a_line(tmp_path: Path, largest_file: int) -> None:
    run(tmp_path, 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    told = with_full_disk(lambda: run(tmp_path, 4, tmp_path / "last.ckpt"), largest_file)
    assert told == (
        f"UserInputError: cannot write {str(tmp_path / 'step-000003.ckpt')!r}: File too large; the checkpoints before "
        f"are intact, --ckpt_path last resumes from the newest"
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_leaves_the_state_that_a_rollback_returns_to(tmp_path: Path) -> None:
    monitor: dict[str, Any] = {"window": 1, "max_drop": 5.0, "action": "rollback", "save_every_n_rollouts": 1}
    run(tmp_path, 3, None, RewardCollapseMonitor(**monitor))
    before = (tmp_path / "healthy.ckpt").read_bytes()
    told = with_full_disk(lambda: run(tmp_path, 9, tmp_path / "last.ckpt", RewardCollapseMonitor(**monitor)), 20_000)
    assert "File too large" in told
    assert (tmp_path / "healthy.ckpt").read_bytes() == before


def directory_checkpoint(path: Path, number: int, time: int) -> Path:
    """As strategies write them that have a file per process."""
    path.mkdir(parents=True)
    (path / ".metadata").write_bytes(b"what is where")
    (path / "__0_0.distcp").write_bytes(bytes(1000))
    torch.save({"number": number, "policy": {"fingerprint": {}, "files": {}}}, path / "meta.pt")
    os.utime(path / "meta.pt", (time, time))
    return path


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", [1, 2])
def test_killed_while_a_directory_takes_anothers_place_one_of_them_is_found(
    tmp_path: Path, call: int, after: bool
) -> None:
    target = directory_checkpoint(tmp_path / "last.ckpt", 1, time=100)
    new = directory_checkpoint(tmp_path / ".last.ckpt.partial", 2, time=200)
    killed_at(Path, "rename", call, lambda: put_in_place(new, target), after=after)
    found = find_last_checkpoint(tmp_path)
    assert found is not None
    assert read_rest(found)["number"] == (2 if (call, after) == (2, True) else 1)
    # The next one is not hindered by what was left.
    directory_checkpoint(tmp_path / "next", 3, time=300)
    with written_whole(target) as partial:
        shutil.copytree(tmp_path / "next", partial)
    shutil.rmtree(tmp_path / "next")
    assert read_rest(target)["number"] == 3
    assert {path.name for path in tmp_path.iterdir()} - {".old-last.ckpt"} == {"last.ckpt"}


@pytest.mark.parametrize("missing", [".metadata", "meta.pt"])
def test_a_directory_that_lacks_what_is_written_last_is_passed_over(tmp_path: Path, missing: str) -> None:
    before = directory_checkpoint(tmp_path / "step-000001.ckpt", 1, time=100)
    cut = directory_checkpoint(tmp_path / "last.ckpt", 2, time=200)
    (cut / missing).unlink()
    assert find_last_checkpoint(tmp_path) == before
    cut_rest = directory_checkpoint(tmp_path / "step-000003.ckpt", 3, time=300) / "meta.pt"
    cut_rest.write_bytes(cut_rest.read_bytes()[:100])
    assert find_last_checkpoint(tmp_path) == before
