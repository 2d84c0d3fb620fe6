"""export: from a checkpoint to a model directory."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.cli.runs import MODEL, error_of

from stabledrl import export
from stabledrl.cli import main


def content(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def test_generates_the_same_text_as_the_checkpoint(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "model"
    assert main(["export", str(checkpoint), str(output)]) == 0
    assert capsys.readouterr().out == f"exported to {output}\n"
    texts = []
    for model in (checkpoint, output):
        assert main(["generate", str(model), "0012300412343410=", "--completion_length=16", "--samples=3"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    trained, start = (load_file(Path(path) / "model.safetensors") for path in (output, MODEL))
    assert trained.keys() == start.keys()
    assert any((trained[name] != start[name]).any() for name in start)


def test_refuses_to_overwrite_unless_told_to(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    (model / "mine.txt").write_text("mine")
    before = content(tmp_path)
    assert "exists already" in error_of(["export", str(checkpoint), str(model)], capsys)
    assert content(tmp_path) == before
    assert main(["export", str(checkpoint), str(model), "--overwrite"]) == 0
    assert sorted(content(model)) == sorted(content(Path(MODEL)))


def test_never_overwrites_what_is_no_model(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mine.txt").write_text("mine")
    error_of(["export", str(checkpoint), str(tmp_path / "work"), "--overwrite"], capsys)
    assert content(tmp_path) == {"work/mine.txt": b"mine"}


def test_is_complete_or_absent(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "save_torch_state_dict", full)
    error = error_of(["export", str(checkpoint), str(tmp_path / "model")], capsys)
    assert "No space left on device" in error
    assert list(tmp_path.iterdir()) == []


def test_a_failed_overwrite_keeps_what_was_there(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    assert main(["export", str(checkpoint), str(tmp_path / "model")]) == 0
    before = content(tmp_path)
    monkeypatch.setattr(export, "save_torch_state_dict", full)
    error_of(["export", str(checkpoint), str(tmp_path / "model"), "--overwrite"], capsys)
    assert content(tmp_path) == before


@pytest.mark.parametrize("size", [0, 10, 5000])
def test_truncated_checkpoint(size: int, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.ckpt").write_bytes(checkpoint.read_bytes()[:size])
    assert "x.ckpt" in error_of(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "model")], capsys)
    assert not (tmp_path / "model").exists()


def test_missing_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(["export", str(tmp_path / "x.ckpt"), str(tmp_path / "model")], capsys)
    assert "no checkpoint at" in error


def test_an_output_that_cannot_be_made(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in error_of(["export", str(checkpoint), str(tmp_path / "file" / "model")], capsys)
