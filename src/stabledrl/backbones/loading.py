"""From a directory or hub id to a policy: finds the family, loads, and refuses what does not fit."""

import importlib
import inspect
import json
import pkgutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file, logging

from stabledrl.backbones.policy import Policy
from stabledrl.errors import UserInputError
from stabledrl.protocols import Backbone

_MODEL_FILES = ("*.json", "*.jinja", "*.model", "*.safetensors", "*.txt")


def available_backbones() -> list[Backbone]:
    """Every backbone: a class derived from `stabledrl.protocols.Backbone`, in this package or imported by the user.

    A class comes before those it derives from, and a newer one before an older one, so a user's own is asked first.
    """
    package = importlib.import_module("stabledrl.backbones")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return [subclass() for subclass in _derived(Backbone)]  # type: ignore[type-abstract]


def _derived(base: type[Backbone]) -> list[type[Backbone]]:
    found: dict[type[Backbone], None] = {}
    for subclass in reversed(base.__subclasses__()):
        found |= dict.fromkeys(_derived(subclass))
        if not inspect.isabstract(subclass):
            found[subclass] = None
    return list(found)


def read_config(path: str, revision: str | None = None) -> dict[str, Any]:
    """Reads the config.json of a directory or hub id.

    Raises:
        UserInputError: There is none, or it is no JSON object.
    """
    if Path(path).exists() and not (Path(path) / "config.json").is_file():
        raise UserInputError(f"no config.json in {path!r}: expected a model directory in the Hugging Face layout")
    if not Path(path).exists() and not looks_like_hub_id(path):
        raise UserInputError(
            f"no model at {path!r}: expected a directory with a config.json (seen from {str(Path.cwd())!r}), "
            f"or a hub id owner/name"
        )
    try:
        file = cached_file(path, "config.json", revision=revision)
    except (OSError, HFValidationError) as error:
        raise UserInputError(
            f"no model at {path!r}: expected a directory with a config.json, or a hub id ({one_line(error)})"
        ) from error
    try:
        config: Any = json.loads(Path(str(file)).read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserInputError(f"config.json of {path!r} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserInputError(f"config.json of {path!r} is not a JSON object but a {type(config).__name__}")
    return config


def looks_like_hub_id(path: str) -> bool:
    """Whether a path may name a repository of the hub: `owner/name`, with an owner that is no folder one works in."""
    owner, slash, name = path.partition("/")
    local = owner in ("", ".", "..", "~", "checkpoints") or Path(owner).exists()
    return bool(slash and name) and "/" not in name and not local


def find_backbone(path: str, revision: str | None = None) -> Backbone:
    """Recognises the family of a model from its config.json.

    Raises:
        UserInputError: No family matches.
    """
    config = read_config(path, revision)
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
    revision: str | None = None,
) -> Policy:
    """Loads a diffusion language model.

    Args:
        path: Directory in the Hugging Face layout, or hub id.
        dtype: Precision of the weights.
        block_size: Block length of a block-diffusion model; None takes the family's.
        mask_token_id: Overrides the mask token of tokenizer and config.
        revision: Branch, tag or commit of a hub id; None takes its main branch.

    Returns:
        The policy, in eval mode.

    Raises:
        UserInputError: The model is absent, of an unknown family, or its weights do not fit its config.
    """
    source = str(path)
    backbone = find_backbone(source, revision)
    directory = _fetch(source, revision)
    policy = backbone.load(directory, dtype=dtype, mask_token_id=mask_token_id, block_size=block_size)
    assert isinstance(policy, Policy)
    policy.source = source
    return policy.eval()


def _fetch(path: str, revision: str | None) -> str:
    """The directory of a model: itself, or a hub id's files in the local cache, without its code."""
    if Path(path).exists():
        if revision is not None:
            raise UserInputError(f"revision {revision!r} given, but {path!r} is a directory; leave it out")
        return path
    try:
        return str(snapshot_download(path, revision=revision, allow_patterns=list(_MODEL_FILES)))
    except Exception as error:
        raise UserInputError(f"cannot fetch {path!r}: {one_line(error)}") from error


def load_config(path: str) -> PreTrainedConfig:
    """Reads config.json into transformers' own class.

    Raises:
        UserInputError: transformers does not know the model type, or refuses a value.
    """
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception as error:
        raise UserInputError(f"cannot use config.json of {path!r}: {one_line(error)}") from error
    return config


def load_tokenizer(path: str, tokenizer_class: Any = AutoTokenizer) -> Any:
    """Loads the tokenizer that lies beside the weights.

    Raises:
        UserInputError: There is none, or its files are corrupt.
    """
    try:
        with _quiet_transformers():
            return tokenizer_class.from_pretrained(path, trust_remote_code=False)
    except Exception as error:
        raise UserInputError(f"cannot load the tokenizer of {path!r}: {one_line(error)}") from error


def load_model(
    path: str, config: PreTrainedConfig, dtype: torch.dtype, key_mapping: dict[str, str] | None = None
) -> PreTrainedModel:
    """Loads weights into transformers' own class and refuses any that are missing, unexpected or of another shape.

    Args:
        path: Directory of the weights.
        config: What they are loaded into.
        dtype: Their precision in memory.
        key_mapping: transformers' name by pattern of the names in the file, where they differ.

    Returns:
        The model; transformers saves it under its own names.

    Raises:
        UserInputError: The weights do not fit the config, or a file is corrupt.
    """
    try:
        with _quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                path,
                config=config,
                dtype=dtype,
                attn_implementation="sdpa",
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                key_mapping=key_mapping,
            )
    except Exception as error:
        raise UserInputError(f"cannot read the weights of {path!r}: {one_line(error)}") from error
    model, info = loaded
    faults = {kind: sorted(map(str, info[kind])) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    told = [f"{len(keys)} {kind.replace('_', ' ')} (first: {keys[0]})" for kind, keys in faults.items() if keys]
    if told:
        raise UserInputError(f"the weights of {path!r} do not fit its config.json: {'; '.join(told)}")
    assert isinstance(model, PreTrainedModel)
    if key_mapping is not None:
        # Else save_pretrained would write the file's names beside a config.json that does not know them.
        model._weight_conversions = None  # type: ignore[assignment]
    for tensor in (*model.parameters(), *model.buffers()):
        # Parts of one matrix in the file share its memory; such a model could not be saved.
        if tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensor.data = tensor.data.clone()
    return model


def one_line(error: Exception) -> str:
    """An error's message on one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No progress bar and no report on stderr: what does not fit is told by our own error."""
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
