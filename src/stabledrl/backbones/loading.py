"""From a directory or hub id to a policy: finds the family, loads, and refuses what does not fit."""

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import HFValidationError
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file, logging

from stabledrl.backbones.policy import Policy
from stabledrl.errors import UserInputError
from stabledrl.protocols import Backbone


def available_backbones() -> list[Backbone]:
    """Every backbone: a subclass of `stabledrl.protocols.Backbone` in this package or imported by the user."""
    package = importlib.import_module("stabledrl.backbones")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return [subclass() for subclass in Backbone.__subclasses__()]


def read_config(path: str) -> dict[str, Any]:
    """Reads the config.json of a directory or hub id.

    Raises:
        UserInputError: There is none, or it is not JSON.
    """
    if Path(path).exists() and not (Path(path) / "config.json").is_file():
        raise UserInputError(f"no config.json in {path!r}: expected a model directory in the Hugging Face layout")
    try:
        file = cached_file(path, "config.json")
        config: dict[str, Any] = json.loads(Path(str(file)).read_text())
    except (OSError, HFValidationError) as error:
        raise UserInputError(f"no model at {path!r}: expected a directory with a config.json, or a hub id") from error
    except json.JSONDecodeError as error:
        raise UserInputError(f"config.json of {path!r} is not valid JSON: {error}") from error
    return config


def find_backbone(path: str) -> Backbone:
    """Recognises the family of a model from its config.json.

    Raises:
        UserInputError: No family matches.
    """
    config = read_config(path)
    backbones = available_backbones()
    for backbone in backbones:
        if backbone.matches(config):
            return backbone
    families = ", ".join(sorted(backbone.family for backbone in backbones))
    raise UserInputError(
        f"{path!r} (model_type {config.get('model_type')!r}) is of no known family; known families: {families}"
    )


def load_policy(
    path: str | Path,
    dtype: torch.dtype = torch.float32,
    block_size: int | None = None,
    mask_token_id: int | None = None,
) -> Policy:
    """Loads a diffusion language model.

    Args:
        path: Directory in the Hugging Face layout, or hub id.
        dtype: Precision of the weights.
        block_size: Block length of a block-diffusion model; None takes the family's.
        mask_token_id: Overrides the mask token of tokenizer and config.

    Returns:
        The policy, in eval mode.

    Raises:
        UserInputError: The model is absent, of an unknown family, or its weights do not fit its config.
    """
    policy = find_backbone(str(path)).load(
        str(path), dtype=dtype, mask_token_id=mask_token_id, block_size=block_size
    )
    assert isinstance(policy, Policy)
    return policy.eval()


def load_model(path: str, config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Loads weights into transformers' own class and refuses any that are missing, unexpected or of another shape.

    Raises:
        UserInputError: The weights do not fit the config, or a file is corrupt.
    """
    model: PreTrainedModel
    logging.disable_progress_bar()
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        raise UserInputError(f"cannot read the weights of {path!r}: {' '.join(str(error).split())[:300]}") from error
    faults = {kind: sorted(map(str, info[kind])) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    told = [f"{len(keys)} {kind.replace('_', ' ')} (first: {keys[0]})" for kind, keys in faults.items() if keys]
    if told:
        raise UserInputError(f"the weights of {path!r} do not fit its config.json: {'; '.join(told)}")
    return model
