import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint

from stabledrl.backbones import NewPolicy, Policy
from stabledrl.checkpoints import (
    POLICY_KEY,
    WEIGHTS_PREFIX,
    check_fingerprint,
    find_last_checkpoint,
    read_checkpoint,
    read_rest,
    sharded_by,
    written_whole,
)
from stabledrl.errors import UserInputError
from stabledrl.export import export_checkpoint


@pytest.fixture(scope="module")
def policy() -> Policy:
    return NewPolicy(characters="ab", hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8).build()


@pytest.fixture
def content(policy: Policy) -> dict[str, Any]:
    weights = {WEIGHTS_PREFIX + name: tensor for name, tensor in policy.model.state_dict().items()}
    return {"state_dict": weights, POLICY_KEY: policy.describe(), "global_step": 3}


def write(file: Path, content: Any, time: int | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, file)
    if time is not None:
        os.utime(file, (time, time))
    return file


def refused(path: Path, match: str) -> None:
    with pytest.raises(UserInputError, match=match) as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)


def test_checkpoint_is_read_back(tmp_path: Path, content: dict[str, Any]) -> None:
    read = read_checkpoint(write(tmp_path / "a.ckpt", content))
    assert read[POLICY_KEY] == content[POLICY_KEY]
    assert read["global_step"] == 3
    assert read["state_dict"].keys() == content["state_dict"].keys()
    assert all(torch.equal(read["state_dict"][name], tensor) for name, tensor in content["state_dict"].items())


def test_absent_file_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "absent.ckpt", "no checkpoint at")


def test_directory_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, "no checkpoint at")


@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.9, 0.999])
def test_truncated_file_is_refused(tmp_path: Path, content: dict[str, Any], share: float) -> None:
    file = write(tmp_path / "cut.ckpt", content)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    refused(file, "cannot read .* it is incomplete")


@pytest.mark.parametrize("data", [b"plain text", b"PK\x03\x04 and then nothing", bytes(1000)])
def test_file_of_another_kind_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "other.ckpt"
    file.write_bytes(data)
    refused(file, "cannot read")


@pytest.mark.parametrize(
    "other",
    [
        {},
        [1, 2],
        torch.zeros(3),
        {"state_dict": {}},
        {POLICY_KEY: {"fingerprint": {}, "files": {}}},
        {"state_dict": {}, POLICY_KEY: None},
        {"state_dict": {}, POLICY_KEY: {"fingerprint": {}}},
        {"state_dict": {}, POLICY_KEY: {"files": {}}},
    ],
    ids=repr,
)
def test_checkpoint_of_another_project_is_refused(tmp_path: Path, other: Any) -> None:
    refused(write(tmp_path / "other.ckpt", other), "not a checkpoint of this project")


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("never-made",))


def test_checkpoint_runs_no_code(tmp_path: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(write(tmp_path / "evil.ckpt", {**content, "extra": Payload()}), "cannot read")
    assert not Path("never-made").exists()


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert find_last_checkpoint(tmp_path) is None
    assert find_last_checkpoint(tmp_path / "absent") is None


@pytest.mark.parametrize("newest", [0, 1, 2])
def test_newest_by_time_of_writing_is_found(tmp_path: Path, newest: int) -> None:
    files = [
        write(tmp_path / f"version_{number}" / "last.ckpt", number, time=100 + (number == newest))
        for number in (10, 9, 2, newest)
    ]
    assert find_last_checkpoint(tmp_path) == files[-1]


def test_last_is_preferred_to_a_copy_of_the_same_time(tmp_path: Path) -> None:
    for name in ("step-000100.ckpt", "a.ckpt", "last.ckpt", "z.ckpt"):
        write(tmp_path / "version_0" / name, 0, time=100)
    assert find_last_checkpoint(tmp_path) == tmp_path / "version_0" / "last.ckpt"


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_file_cut_off_while_written_is_passed_over(tmp_path: Path, content: dict[str, Any], share: float) -> None:
    write(tmp_path / "version_0" / "last.ckpt", content, time=100)
    before = write(tmp_path / "version_1" / "step-000100.ckpt", content, time=200)
    cut = tmp_path / "version_1" / "last.ckpt"
    cut.write_bytes(before.read_bytes()[: int(share * before.stat().st_size)])
    os.utime(cut, (300, 300))
    found = find_last_checkpoint(tmp_path)
    assert found == before
    read_checkpoint(found)


def test_no_complete_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").write_bytes(b"PK\x03\x04")
    assert find_last_checkpoint(tmp_path) is None


def test_dangling_link_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").symlink_to(tmp_path / "gone.ckpt")
    whole = write(tmp_path / "step-000001.ckpt", 0)
    assert find_last_checkpoint(tmp_path) == whole


SHARDED = {"FSDP": "model", "FSDP2": "state_dict"}
"""What the strategies call the weights."""


def write_sharded(path: Path, content: dict[str, Any], writer: str) -> Path:
    """As the strategies write it, by one process."""
    rest = {name: value for name, value in content.items() if name != "state_dict"}
    optimizer = {"state": {"weight": {"exp_avg": torch.full((7,), 7.0)}}}
    state = {SHARDED[writer]: content["state_dict"], "optimizer_0": optimizer}
    torch.distributed.checkpoint.save(state, checkpoint_id=path, no_dist=True)
    torch.save(rest, path / "meta.pt")
    return path


@pytest.mark.parametrize("writer", SHARDED)
def test_a_sharded_checkpoint_is_read_as_a_file_is_without_its_optimizer_states(
    tmp_path: Path, content: dict[str, Any], writer: str
) -> None:
    path = write_sharded(tmp_path / "last.ckpt", content, writer)
    assert sharded_by(path) == writer
    read, whole = read_checkpoint(path), read_checkpoint(write(tmp_path / "whole.ckpt", content))
    assert read.keys() == whole.keys()
    assert read["state_dict"].keys() == whole["state_dict"].keys()
    for name, tensor in whole["state_dict"].items():
        assert torch.equal(read["state_dict"][name], tensor)
        assert read["state_dict"][name].dtype == tensor.dtype
    assert "state_dict" not in read_rest(path)
    assert read_rest(path)[POLICY_KEY] == content[POLICY_KEY]


@pytest.mark.parametrize("writer", SHARDED)
def test_a_sharded_checkpoint_is_exported_as_a_file_is(tmp_path: Path, content: dict[str, Any], writer: str) -> None:
    first = export_checkpoint(write_sharded(tmp_path / "a.ckpt", content, writer), tmp_path / "a")
    second = export_checkpoint(write(tmp_path / "b.ckpt", content), tmp_path / "b")
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()
    assert {file.name for file in first.iterdir()} == {file.name for file in second.iterdir()}


def test_a_file_is_not_sharded(tmp_path: Path, content: dict[str, Any]) -> None:
    assert sharded_by(write(tmp_path / "a.ckpt", content)) is None
    assert sharded_by(tmp_path / "absent.ckpt") is None


@pytest.mark.parametrize("sharded", [False, True])
def test_the_newest_is_found_be_it_a_file_or_sharded(tmp_path: Path, content: dict[str, Any], sharded: bool) -> None:
    file = write(tmp_path / "a" / "last.ckpt", content, time=200)
    directory = write_sharded(tmp_path / "b" / "last.ckpt", content, "FSDP")
    time = 300 if sharded else 100
    os.utime(directory / "meta.pt", (time, time))
    assert find_last_checkpoint(tmp_path) == (directory if sharded else file)


def test_what_was_written_replaces_what_was_there_be_it_file_or_directory(tmp_path: Path) -> None:
    target = tmp_path / "last.ckpt"
    for number, kind in enumerate(["file", "file", "directory", "directory", "file"]):
        with written_whole(target) as partial:
            if kind == "directory":
                partial.mkdir()
            (partial / "part" if kind == "directory" else partial).write_text(str(number))
            assert not partial.name.endswith(".ckpt")
        assert (target / "part" if kind == "directory" else target).read_text() == str(number)
        assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_fails_while_written_leaves_what_was_there(tmp_path: Path, there: bool, kind: str) -> None:
    target = tmp_path / "last.ckpt"
    if there:
        target.write_text("before")

    def fail() -> None:
        with written_whole(target) as partial:
            if kind == "directory":
                partial.mkdir()
            (partial / "part" if kind == "directory" else partial).write_text("half")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"] * there


def test_same_fingerprint_passes(policy: Policy) -> None:
    check_fingerprint(policy.fingerprint, dict(policy.fingerprint))


def test_every_difference_is_named_with_both_values(policy: Policy) -> None:
    own = policy.fingerprint
    for name, value in own.items():
        with pytest.raises(UserInputError) as caught:
            check_fingerprint({**own, name: "other"}, own)
        assert f"{name}: checkpoint 'other', policy {value!r}" in str(caught.value)
        for unchanged in own.keys() - {name}:
            assert f"{unchanged}:" not in str(caught.value)


def test_all_differences_are_named_at_once() -> None:
    with pytest.raises(UserInputError, match=r"a: checkpoint 1, policy 2; b: checkpoint None, policy 3"):
        check_fingerprint({"a": 1, "c": 5}, {"a": 2, "b": 3, "c": 5})


def test_field_that_only_the_checkpoint_has_is_a_difference() -> None:
    with pytest.raises(UserInputError, match="a: checkpoint 1, policy None"):
        check_fingerprint({"a": 1}, {})
