"""RunManifest: a file from which a run can be told and made again."""

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
import pytest
from tests.killed import killed_at, parts, with_full_disk
from tests.training import Digits, tiny_module, train

from stabledrl.callbacks import RunCheckpoint, RunManifest
from stabledrl.callbacks.run_manifest import git_state
from stabledrl.data.sources import Source
from stabledrl.protocols import Split


def manifest(directory: Path, *callbacks: Any, **options: Any) -> dict[str, Any]:
    train(tiny_module(), *callbacks, RunManifest("a: 1"), steps=1, log_to=directory, **options)
    found: dict[str, Any] = json.loads((directory / "manifest.json").read_text())
    return found


def test_it_names_versions_host_devices_command_seed_and_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["stabledrl", "fit", "-c", "my config.yaml"])
    found = manifest(tmp_path)
    assert {"stabledrl", "lightning", "torch"} <= found["packages"].keys()
    assert found["packages"]["lightning"] == lightning.__version__
    assert found["host"]["name"] == platform.node()
    assert found["devices"]["kind"] == "cpu"
    assert found["devices"]["processes"] == 1
    assert found["command"] == "stabledrl fit -c 'my config.yaml'"
    assert found["seed"] == 0
    assert found["configuration_sha256"] == hashlib.sha256(b"a: 1").hexdigest()
    assert found["policy"]["fingerprint"]["family"] == "native"
    assert found["resumed_from"] is None


def test_it_lies_beside_logs_and_checkpoints_and_names_what_was_resumed_from(tmp_path: Path) -> None:
    manifest(tmp_path / "logs", RunCheckpoint(dirpath=str(tmp_path / "a")))
    assert (tmp_path / "a" / "manifest.json").read_text() == (tmp_path / "logs" / "manifest.json").read_text()
    last = tmp_path / "a" / "last.ckpt"
    found = manifest(tmp_path / "again", RunCheckpoint(dirpath=str(tmp_path / "b")), ckpt_path=last)
    assert found["resumed_from"] == str(last)


class RevisedDigits(Digits):
    """From a data set, of which one cell may change."""

    def __init__(self, gold: str = "0") -> None:
        super().__init__()
        self.gold = gold
        self.sources = {"train": [Source(path="someone/digits", split="train", revision="abc123")]}

    def rows(self, split: Split) -> Sequence[Mapping[str, Any]]:
        rows = list(super().rows(split))
        return rows if split == "evaluation" else [{**rows[0], "gold": self.gold}, *rows[1:]]


def test_it_tells_data_apart_by_source_revision_and_every_cell(tmp_path: Path) -> None:
    first, again, other = (
        manifest(tmp_path / name, tasks=[RevisedDigits(gold)])["data"]["digits"]
        for name, gold in (("a", "0"), ("b", "0"), ("c", "9"))
    )
    assert first["train"]["sources"] == [{"path": "someone/digits", "split": "train", "revision": "abc123"}]
    assert first["train"]["rows"] == 8
    assert first == again
    assert first["train"]["sha256"] != other["train"]["sha256"]
    assert first["evaluation"] == other["evaluation"]


def test_the_state_of_a_repository(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None

    def git(*arguments: str) -> str:
        own = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(tmp_path)]
        return subprocess.run(["git", *own, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert git_state(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "file").write_text("2")
    assert git_state(tmp_path) == {"commit": commit, "dirty": True}


def test_without_git_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert manifest(tmp_path)["git"] == {"working_directory": None, "stabledrl": None}


def test_a_kill_or_a_full_disk_leaves_a_whole_manifest_or_none(tmp_path: Path) -> None:
    killed_at(Path, "replace", 1, lambda: manifest(tmp_path))
    assert not (tmp_path / "manifest.json").exists()
    for part in parts(tmp_path):
        part.unlink()
    told = with_full_disk(lambda: manifest(tmp_path), 1000)
    assert "cannot write" in told
    assert "manifest.json" in told
    assert not (tmp_path / "manifest.json").exists()
    assert manifest(tmp_path)["seed"] == 0
