"""From a training checkpoint to a model directory in the Hugging Face layout, and back into memory."""

import copy
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor

from stabledrl.backbones import Policy, load_policy
from stabledrl.backbones.lora import LoRA, load_adapters, merge
from stabledrl.backbones.translation import source_layout
from stabledrl.checkpoints import POLICY_KEY, WEIGHTS_PREFIX, check_fingerprint, read_checkpoint
from stabledrl.errors import UserInputError

Layout = Literal["native", "source"]
"""The key names and config.json of a model directory: transformers' own class, or as the family is published."""


def export_checkpoint(
    checkpoint: str | Path,
    output: str | Path,
    *,
    layout: Layout = "native",
    overwrite: bool = False,
    base: str | Path | None = None,
) -> Path:
    """Writes the policy of a training checkpoint as a model directory.

    The directory appears complete or not at all: it is written beside its place and renamed. Adapters are merged into
    the weights of the model they were trained on, in float32.

    Args:
        checkpoint: A .ckpt that training wrote, a file or a directory with a file per process.
        output: Directory to make.
        layout: `native` for `AutoModelForCausalLM`, `source` for tools made for the model's family.
        overwrite: Replace an existing directory.
        base: Where the model that adapters were trained on is now; None looks where it was.

    Returns:
        The directory.

    Raises:
        UserInputError: The checkpoint cannot be used, the output exists, or the family has no layout of its own.
    """
    content = read_checkpoint(checkpoint)
    weights = {
        name.removeprefix(WEIGHTS_PREFIX): tensor
        for name, tensor in content["state_dict"].items()
        if name.startswith(WEIGHTS_PREFIX)
    }
    if not weights:
        raise UserInputError(f"checkpoint {str(checkpoint)!r} holds no weights of a policy ({WEIGHTS_PREFIX}*)")
    lora = LoRA.of_fingerprint(content[POLICY_KEY]["fingerprint"])
    if lora is not None:
        _check_target(Path(output).resolve(), overwrite)  # Before a model is loaded.
        policy = _load_adapted(lora, weights, content[POLICY_KEY], base)
        return export_policy(merge(policy), output, layout=layout, overwrite=overwrite)
    if base is not None:
        raise UserInputError(f"base {str(base)!r} given, but checkpoint {str(checkpoint)!r} holds no adapters")
    return _write(weights, content[POLICY_KEY]["files"], output, layout, overwrite)


def _load_adapted(
    lora: LoRA, adapters: Mapping[str, Tensor], description: Mapping[str, Any], base: str | Path | None
) -> Policy:
    source, fingerprint = base or description["source"], description["fingerprint"]
    if source is None:
        raise UserInputError("the checkpoint holds adapters of a model that was made in memory; --base names its copy")
    try:
        policy = load_policy(
            source,
            getattr(torch, fingerprint["base_dtype"]),
            block_size=fingerprint["block_size"],
            mask_token_id=fingerprint["mask_token_id"],
            revision=None if base else description["revision"],
        )
    except UserInputError as error:
        raise UserInputError(f"{error}; the checkpoint's adapters need it: --base names where it is") from error
    lora.add_to(policy)
    check_fingerprint(fingerprint, policy.fingerprint)
    load_adapters(policy, adapters)
    return policy


def export_policy(policy: Policy, output: str | Path, *, layout: Layout = "native", overwrite: bool = False) -> Path:
    """Writes a policy in memory, with its adapters merged, as a model directory; see `export_checkpoint`."""
    policy = merge(copy.deepcopy(policy)) if policy.adapters else policy
    return _write(policy.model.state_dict(), policy.description_files(), output, layout, overwrite)


def _write(
    weights: Mapping[str, Tensor], files: Mapping[str, str], output: str | Path, layout: Layout, overwrite: bool
) -> Path:
    if layout == "source":
        _check_target(Path(output).resolve(), overwrite)  # Before the weights are rearranged.
        weights, files = source_layout(weights, files)
    return write_model_directory(weights, files, output, overwrite=overwrite)


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
        UserInputError: The output exists and `overwrite` is not set, or it is no model directory.
    """
    target = Path(output).resolve()
    _check_target(target, overwrite)
    if unsafe := [name for name in files if Path(name).name != name or name == ".."]:
        raise UserInputError(f"file name {unsafe[0]!r} would lie outside of the model directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
    try:
        temporary.chmod(0o755)
        for name, text in files.items():
            (temporary / name).write_text(text, encoding="utf-8")
        save_torch_state_dict(dict(weights), temporary, safe_serialization=True)
        for file in temporary.iterdir():
            file.chmod(0o644)
        _put_in_place(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Path(output)


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not overwrite:
        raise UserInputError(f"output {str(target)!r} exists already; choose another or pass --overwrite")
    if not target.is_dir() or (any(target.iterdir()) and not (target / "config.json").is_file()):
        raise UserInputError(f"output {str(target)!r} is no model directory (no config.json); it is not overwritten")


def _put_in_place(temporary: Path, target: Path) -> None:
    """Renames the finished directory; an existing target is moved aside first and comes back if that fails."""
    if not target.exists():
        temporary.rename(target)
        return
    aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-old-"))
    try:
        target.rename(aside / target.name)
        try:
            temporary.rename(target)
        except BaseException:
            (aside / target.name).rename(target)
            raise
    except BaseException:
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


def load_any_policy(path: str | Path, dtype: torch.dtype = torch.float32) -> Policy:
    """Loads a policy from a training checkpoint, a model directory or a hub id.

    Raises:
        UserInputError: None of them is at the path.
    """
    if Path(path).suffix != ".ckpt":
        return load_policy(path, dtype)
    with tempfile.TemporaryDirectory() as directory:
        policy = load_policy(export_checkpoint(path, Path(directory) / "model"), dtype)
    policy.source = str(path)
    return policy
