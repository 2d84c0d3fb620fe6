"""Which checkpoint a command takes, and what it refuses before a model is loaded."""

import os
from pathlib import Path

import pytest
import torch
from tests.test_checkpoints import SHARDED, write_sharded

from stabledrl.checkpoints import read_checkpoint
from stabledrl.cli.checkpoint_choice import choose_checkpoint
from stabledrl.errors import UserInputError


@pytest.mark.parametrize("training", [True, False])
def test_last_is_the_newest_of_the_run_and_initial_is_none(checkpoint: Path, training: bool) -> None:
    assert choose_checkpoint("last", checkpoint.parent, training=training) == str(checkpoint)
    assert choose_checkpoint("initial", checkpoint.parent, training=training) is None
    assert choose_checkpoint(str(checkpoint), Path("elsewhere"), training=training) == str(checkpoint)


def test_nothing_said_is_none_for_training_and_the_newest_otherwise(checkpoint: Path) -> None:
    assert choose_checkpoint(None, checkpoint.parent, training=True) is None
    assert choose_checkpoint(None, checkpoint.parent, training=False) == str(checkpoint)


@pytest.mark.parametrize("writer", SHARDED)
def test_a_sharded_checkpoint_is_taken_as_a_file_is(checkpoint: Path, tmp_path: Path, writer: str) -> None:
    content = dict(read_checkpoint(checkpoint))
    path = write_sharded(tmp_path / "last.ckpt", content, writer)
    for name in ("last", str(path)):
        assert choose_checkpoint(name, tmp_path, training=True) == str(path)


def test_weights_alone_are_no_run_to_go_on_with(checkpoint: Path, tmp_path: Path) -> None:
    content = read_checkpoint(checkpoint)
    path = tmp_path / "last.ckpt"
    torch.save({name: content[name] for name in ("state_dict", "policy")}, path)
    assert choose_checkpoint("last", tmp_path, training=False) == str(path)
    with pytest.raises(UserInputError, match="holds weights alone"):
        choose_checkpoint("last", tmp_path, training=True)


@pytest.mark.parametrize("kind", ["absent", "cut", "of another project", "an empty directory"])
def test_what_is_no_checkpoint_is_refused_in_a_line(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.ckpt"
    if kind == "cut":
        path.write_bytes(checkpoint.read_bytes()[:1000])
    elif kind == "of another project":
        torch.save({"state_dict": {}}, path)
    elif kind == "an empty directory":
        path.mkdir()
    with pytest.raises(UserInputError) as refused:
        choose_checkpoint(str(path), tmp_path, training=True)
    assert str(path) in str(refused.value)
    assert os.linesep not in str(refused.value)
