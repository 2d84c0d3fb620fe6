"""How checkpoints are read and written, by whichever trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.training import same, tiny_module, train, weights

from stabledrl.callbacks import RunCheckpoint
from stabledrl.callbacks.saving import WholeFileIO, save_checkpoint, write_together
from stabledrl.errors import UserInputError


def sharded(directory: Path, writer_key: str) -> Path:
    """A run's last checkpoint as the strategies write it that have a file per process."""
    train(tiny_module(), RunCheckpoint(dirpath=str(directory)), steps=2)
    content = torch.load(directory / "last.ckpt", weights_only=True)
    path = directory / "sharded.ckpt"
    torch.distributed.checkpoint.save({writer_key: content.pop("state_dict")}, checkpoint_id=path, no_dist=True)
    del content["optimizer_states"]
    torch.save(content, path / "meta.pt")
    return path


@pytest.mark.parametrize(("key", "strategy"), [("model", "FSDP"), ("state_dict", "FSDP2")])
def test_training_goes_on_from_a_sharded_checkpoint_only_with_its_strategy(
    tmp_path: Path, key: str, strategy: str
) -> None:
    path = sharded(tmp_path, key)
    with pytest.raises(UserInputError, match=rf"go on with trainer.strategy stabledrl.strategies.{strategy}, on any"):
        train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path / "b")), steps=4, ckpt_path=path)


@pytest.mark.parametrize("key", ["model", "state_dict"])
def test_a_sharded_checkpoint_is_evaluated_by_one_process(tmp_path: Path, key: str) -> None:
    path = sharded(tmp_path, key)
    read = WholeFileIO(training=False).load_checkpoint(path)
    assert same(read["state_dict"], torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"])


def test_whatever_saves_beside_ours_writes_whole_files_too(tmp_path: Path) -> None:
    """Lightning's own callback, and its way of saving for Slurm."""
    theirs = ModelCheckpoint(tmp_path / "theirs", every_n_train_steps=1)
    trainer = train(tiny_module(), theirs, RunCheckpoint(dirpath=str(tmp_path / "ours")), steps=1)
    assert type(trainer.strategy.checkpoint_io) is WholeFileIO


def test_a_way_of_writing_that_the_user_chose_is_kept(tmp_path: Path) -> None:
    class Own(WholeFileIO):
        saved: list[str] = []

        def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
            self.saved.append(Path(path).name)
            super().save_checkpoint(checkpoint, path, storage_options)

    own = Own()
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path)), steps=1, plugins=[own])
    assert own.saved == ["step-000001.ckpt"]


def test_what_is_saved_by_hand_holds_the_run(tmp_path: Path) -> None:
    module = tiny_module()
    trainer: Trainer = train(module, steps=2)
    save_checkpoint(trainer, str(tmp_path / "deep" / "a.ckpt"))
    saved = torch.load(tmp_path / "deep" / "a.ckpt", weights_only=True)
    assert saved["global_step"] == 2
    assert same(saved["state_dict"], weights(module))
    save_checkpoint(trainer, str(tmp_path / "b.ckpt"), weights_only=True)
    assert "optimizer_states" not in torch.load(tmp_path / "b.ckpt", weights_only=True)


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_error_of_the_operating_system_is_told_in_a_line(wrapped: bool) -> None:
    def write() -> None:
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            if not wrapped:
                raise
            raise RuntimeError("unexpected position") from error

    with pytest.raises(UserInputError, match=r"^cannot write 'a.ckpt': No space left on device; the checkpoints "):
        write_together("a.ckpt", write)


def test_another_error_is_raised_as_it_is() -> None:
    def write() -> None:
        raise RuntimeError("a tensor that cannot be saved")

    with pytest.raises(RuntimeError, match="a tensor that cannot be saved"):
        write_together("a.ckpt", write)
