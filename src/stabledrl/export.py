"""From a training checkpoint to a model directory in the Hugging Face layout, and back into memory."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor

from stabledrl.backbones import Policy, load_policy
from stabledrl.checkpoints import POLICY_KEY, WEIGHTS_PREFIX, read_checkpoint
from stabledrl.errors import UserInputError


def export_checkpoint(checkpoint: str | Path, output: str | Path, *, overwrite: bool = False) -> Path:
    """Writes the policy of a training checkpoint as a directory that `AutoModelForCausalLM` loads.

    The directory appears complete or not at all: it is written beside its place and renamed.

    Args:
        checkpoint: A .ckpt file that training wrote.
        output: Directory to make.
        overwrite: Replace an existing directory.

    Returns:
        The directory.

    Raises:
        UserInputError: The checkpoint cannot be used, or the output exists.
    """
    content = read_checkpoint(checkpoint)
    weights = {
        name.removeprefix(WEIGHTS_PREFIX): tensor
        for name, tensor in content["state_dict"].items()
        if name.startswith(WEIGHTS_PREFIX)
    }
    return write_model_directory(weights, content[POLICY_KEY]["files"], output, overwrite=overwrite)


def export_policy(policy: Policy, output: str | Path, *, overwrite: bool = False) -> Path:
    """Writes a policy in memory as a model directory; see `export_checkpoint`."""
    return write_model_directory(policy.model.state_dict(), policy.description_files(), output, overwrite=overwrite)


def write_model_directory(
    weights: Mapping[str, Tensor], files: Mapping[str, str], output: str | Path, *, overwrite: bool
) -> Path:
    """Writes weights and text files as a model directory, complete or not at all.

    Args:
        weights: Tensors under transformers' names.
        files: Texts of config and tokenizer files by name.
        output: Directory to make.
        overwrite: Replace an existing directory.

    Returns:
        The directory.

    Raises:
        UserInputError: The output exists and `overwrite` is not set.
    """
    target = Path(output)
    if target.exists() and not overwrite:
        raise UserInputError(f"output {str(target)!r} exists already; choose another or pass --overwrite")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        temporary.chmod(0o755)
        for name, text in files.items():
            (temporary / name).write_text(text, encoding="utf-8")
        save_torch_state_dict(dict(weights), temporary, safe_serialization=True)
        for file in temporary.iterdir():
            file.chmod(0o644)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def load_any_policy(path: str | Path, dtype: torch.dtype = torch.float32) -> Policy:
    """Loads a policy from a training checkpoint, a model directory or a hub id.

    Raises:
        UserInputError: None of them is at the path.
    """
    if Path(path).suffix != ".ckpt":
        return load_policy(path, dtype)
    with tempfile.TemporaryDirectory() as directory:
        return load_policy(export_checkpoint(path, Path(directory) / "model"), dtype)
