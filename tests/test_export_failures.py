import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stabledrl.export
from stabledrl.backbones import NewPolicy, Policy, load_policy
from stabledrl.export import export_policy


@pytest.fixture(scope="module")
def policy() -> Policy:
    return NewPolicy(
        characters="abcd", hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8, initializer_range=0.3
    ).build()


def contents(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


class InterruptError(BaseException):
    """As a signal's exception, no Exception."""


def failing(real: Callable[..., Any], at_call: int, error: type[BaseException]) -> Callable[..., Any]:
    """Does the work, but fails at the given call."""
    calls = iter(range(1, 1000))

    def wrapped(*arguments: Any, **options: Any) -> Any:
        if next(calls) == at_call:
            raise error("no space left")
        return real(*arguments, **options)

    return wrapped


FAILURES = {
    "first text file": (Path, "write_text", 1),
    "second text file": (Path, "write_text", 2),
    "weights": (stabledrl.export, "save_torch_state_dict", 1),
    "permissions": (Path, "chmod", 3),
    "first rename": (Path, "rename", 1),
    "second rename": (Path, "rename", 2),
}


@pytest.mark.parametrize("error", [OSError, InterruptError])
@pytest.mark.parametrize("where", FAILURES.values(), ids=FAILURES.keys())
def test_failure_keeps_an_existing_target_and_leaves_nothing_else(
    policy: Policy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[Any, str, int],
    error: type[BaseException],
) -> None:
    exported = export_policy(policy, tmp_path / "model")
    (exported / "mark.txt").write_text("the old one")
    before = contents(tmp_path)
    owner, name, call = where
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), call, error))
        with pytest.raises(error, match="no space left"):
            export_policy(policy, exported, overwrite=True)
    assert contents(tmp_path) == before
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
    load_policy(exported)


@pytest.mark.parametrize("where", list(FAILURES.values())[:-1], ids=list(FAILURES)[:-1])
def test_failure_leaves_nothing(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str, int]
) -> None:
    owner, name, call = where
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), call, OSError))
        with pytest.raises(OSError, match="no space left"):
            export_policy(policy, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    export_policy(policy, tmp_path / "model")


def test_weights_written_in_part_leave_nothing(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(weights: Any, directory: Path, **options: Any) -> None:
        (directory / "model.safetensors").write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(stabledrl.export, "save_torch_state_dict", half)
    with pytest.raises(OSError, match="no space left"):
        export_policy(policy, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_old_model_that_cannot_be_deleted_does_not_undo_the_export(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = export_policy(policy, tmp_path / "model")
    (exported / "stale.txt").write_text("stale")
    real = shutil.rmtree

    def stubborn(path: Path, ignore_errors: bool = False, **options: Any) -> None:
        if "-old-" not in str(path):
            real(path, ignore_errors, **options)
        elif not ignore_errors:
            raise OSError("busy")

    monkeypatch.setattr(shutil, "rmtree", stubborn)
    export_policy(policy, exported, overwrite=True)
    assert not (exported / "stale.txt").exists()
