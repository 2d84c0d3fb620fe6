"""Which checkpoint a command of the trainer takes."""

from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from stabledrl.checkpoints import find_last_checkpoint, read_rest
from stabledrl.errors import UserInputError


def choose_checkpoint(path: str | None, directory: Path, *, training: bool) -> str | None:
    """`last` and, outside of training, nothing stand for the newest checkpoint; `initial` for none.

    Args:
        path: As the user gave it.
        directory: Where the run's checkpoints are.
        training: Whether the run is to be gone on with.

    Returns:
        The path of a checkpoint of ours, None for none.

    Raises:
        UserInputError: There is none, or it is not whole, not of this project, or without what training needs.
    """
    if path == "initial" or (path is None and training):
        return None
    if path in (None, "last"):
        found = find_last_checkpoint(directory)
        if found is None:
            raise UserInputError(
                f"no last.ckpt below {str(directory)!r}; name one with --ckpt_path, or --ckpt_path initial for the "
                f"model that training starts from"
            )
        path = str(found)
    elif not Path(str(path)).exists():
        raise UserInputError(f"no checkpoint at {path!r}; expected a .ckpt, last or initial")
    rest = read_rest(str(path))
    if training and "loops" not in rest:
        raise UserInputError(f"checkpoint {path!r} holds weights alone (save_weights_only): no run can go on from it")
    rank_zero_only(print)(f"checkpoint: {path}")
    return path
