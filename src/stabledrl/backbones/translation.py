"""What the published model families share: reading their config.json, loading, and the way back.

A loaded model is one of transformers' own and is saved as such. Its config carries what transformers does not know, in
four fields of its own: `stabledrl_family`, `mask_token_id`, `block_size` and `stabledrl_source_config` (the published
config.json). With these, a saved model loads as what it is and can be written back in its family's layout.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig

from stabledrl.backbones.key_names import patterns, rename
from stabledrl.backbones.loading import (
    available_backbones,
    load_config,
    load_model,
    load_tokenizer,
    one_line,
    read_config,
)
from stabledrl.backbones.policy import Policy
from stabledrl.errors import UserInputError
from stabledrl.protocols import Backbone
from stabledrl.types import Vocabulary

FAMILY, MASK, BLOCK, SOURCE = "stabledrl_family", "mask_token_id", "block_size", "stabledrl_source_config"

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


class PublishedBackbone(Backbone):
    """A family with a layout of its own.

    Attributes:
        mask_token_id: Mask token of the published models, where config.json names none.
        end_token_id: Their end (and padding) token, where config.json names none.
        end_of_turn: The token that ends a turn of a chat, where the tokenizer has it.
        block_size: Tokens per block, where config.json names none; None for bidirectional attention.
        shifted: Whether the model's own logits at position i predict token i + 1.
        names: Published name of every tensor that must be renamed to load, by transformers' name; `{}` is a number.
        tokenizer_class: The class that loads the tokenizer without remote code.
    """

    mask_token_id: int
    end_token_id: int
    end_of_turn: str
    block_size: int | None = None
    shifted: bool = False
    names: Mapping[str, str] = {}
    tokenizer_class: Any = AutoTokenizer

    @abstractmethod
    def published(self, config: dict[str, Any]) -> bool:
        """Whether a published config.json is of this family."""
        ...

    @abstractmethod
    def native_config(self, config: dict[str, Any]) -> PreTrainedConfig:
        """Translates a published config.json into transformers' own class.

        Raises:
            UserInputError: A field is missing, or says what transformers' class does not do.
        """
        ...

    def source_weights(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights under the published names, from those under transformers' names."""
        return rename(weights, self.names)

    def matches(self, config: dict[str, Any]) -> bool:
        """Whether config.json is of this family, in its published layout or as saved by this project."""
        return config.get(FAMILY) == self.family if FAMILY in config else self.published(config)

    def load(self, path: str, *, dtype: torch.dtype, mask_token_id: int | None, block_size: int | None) -> Policy:
        """Loads the model, and the tokenizer if one lies beside it.

        Raises:
            UserInputError: A special token or block size is impossible, or config, weights or tokenizer do not fit.
        """
        published = read_config(path)
        saved_by_us = FAMILY in published
        config = self.config_of(path, published)
        tokenizer = load_tokenizer(path, self.tokenizer_class) if _has_tokenizer(path) else None
        vocabulary = self._vocabulary(path, config, published, tokenizer, mask_token_id)
        block = self.block_size_of(path, published, block_size)
        ends = list(vocabulary.end_token_ids)
        config.update({"is_causal": False, "use_cache": False, "eos_token_id": ends if len(ends) > 1 else ends[0]})
        # It would become the embedding's padding_idx, and the end token's row could not learn.
        config.update({"pad_token_id": None})
        given = {MASK: mask_token_id, BLOCK: block_size}
        config.update(
            {
                FAMILY: self.family,
                MASK: vocabulary.mask_token_id,
                **({} if block is None else {BLOCK: block}),
                SOURCE: {
                    **(published.get(SOURCE, {}) if saved_by_us else published),
                    **{name: value for name, value in given.items() if value is not None},
                },
            }
        )
        model = load_model(path, config, dtype, key_mapping=None if saved_by_us else patterns(self.names))
        model.config.architectures = [type(model).__name__]
        options: dict[str, Any] = {"block_size": block, "shifted": self.shifted}
        return Policy(model, tokenizer, vocabulary, family=self.family, source=path, **options)

    def config_of(self, path: str, published: dict[str, Any]) -> PreTrainedConfig:
        """Reads config.json, in the published layout or as this project saves it, into transformers' own class.

        Raises:
            UserInputError: It cannot be used.
        """
        if FAMILY in published:
            return load_config(path)
        try:
            return self.native_config(published)
        except Exception as error:
            raise UserInputError(f"cannot use config.json of {path!r} ({self.family}): {one_line(error)}") from error

    def block_size_of(self, path: str, config: dict[str, Any], asked: int | None) -> int | None:
        """Tokens per block: those asked for, else config.json's, else the family's; None for full attention.

        Raises:
            UserInputError: There are no such blocks.
        """
        if self.block_size is None:
            if asked is not None:
                raise UserInputError(f"block_size {asked} given, but {path!r} is a full-attention model; leave it out")
            return None
        size = config.get(BLOCK) if asked is None else asked
        size = self.block_size if size is None else size
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UserInputError(f"block_size {size!r} of {path!r} must be a whole number of at least 1")
        return size

    def _vocabulary(
        self, path: str, native: Any, config: dict[str, Any], tokenizer: Any, mask_token_id: int | None
    ) -> Vocabulary:
        rows = native.vocab_size
        if tokenizer is not None and len(tokenizer) > rows:
            raise UserInputError(
                f"the tokenizer of {path!r} has {len(tokenizer)} tokens, more than the model's vocabulary of {rows}"
            )
        candidates = rows if tokenizer is None else len(tokenizer)
        named = next((config[name] for name in ("eos_token_id", "pad_token_id") if config.get(name) is not None), None)
        ends = (named if isinstance(named, list) else [named]) if named is not None else [self.end_token_id]
        mask = config.get(MASK) if mask_token_id is None else mask_token_id
        mask = self.mask_token_id if mask is None else mask
        _check_token(path, "mask_token_id", mask, rows)
        for end in ends:
            _check_token(path, "end token id", end, candidates)
        turn = tokenizer.get_vocab().get(self.end_of_turn) if tokenizer is not None else None
        end_token_ids = tuple(dict.fromkeys(ends if turn is None else [*ends, turn]))
        if mask in end_token_ids:
            raise UserInputError(f"mask_token_id {mask} of {path!r} is an end token; they must differ")
        return Vocabulary(
            mask_token_id=mask, pad_token_id=ends[0], end_token_ids=end_token_ids, num_candidates=candidates
        )


def source_layout(weights: Mapping[str, Tensor], files: Mapping[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Translates a model directory's content back into the layout its family is published in.

    Args:
        weights: Tensors under transformers' names.
        files: Texts of config and tokenizer files by name, as `Policy.description_files` gives them.

    Returns:
        Tensors under the published names, and the files with the published config.json, its precision brought up to
        date. Code that it names (`auto_map`) is not among them.

    Raises:
        UserInputError: The model is of no family with a layout of its own.
    """
    native = json.loads(files["config.json"])
    families = {found.family: found for found in available_backbones() if isinstance(found, PublishedBackbone)}
    backbone = families.get(native.get(FAMILY))
    if backbone is None or not native.get(SOURCE):
        raise UserInputError(
            f"a {native.get('model_type')!r} model has no source layout: only those of {', '.join(sorted(families))}"
        )
    config = dict(native[SOURCE])
    precision = str(next(tensor for tensor in weights.values() if tensor.is_floating_point()).dtype)
    config["dtype" if "dtype" in config else "torch_dtype"] = precision.removeprefix("torch.")
    return backbone.source_weights(weights), {**files, "config.json": json.dumps(config, indent=2) + "\n"}


def _check_token(path: str, name: str, token: Any, size: int) -> None:
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < size:
        raise UserInputError(f"{name} {token!r} of {path!r} is outside its vocabulary of {size}")


def _has_tokenizer(path: str) -> bool:
    return any((Path(path) / name).is_file() for name in _TOKENIZER_FILES)


def fields(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Fields that a published config.json and transformers' class call by the same name.

    Raises:
        UserInputError: One is missing.
    """
    if missing := [name for name in names if config.get(name) is None]:
        raise UserInputError(f"no {', '.join(missing)}")
    return {name: config[name] for name in names}


def require(config: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Refuses options of a published architecture that transformers' class has not got.

    Raises:
        UserInputError: A field that is there differs from the only value supported.
    """
    for name, value in expected.items():
        if config.get(name, value) != value:
            raise UserInputError(f"{name} {config[name]!r} is not supported, only {value!r}")


def rope(config: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """Rotary positions without scaling, as transformers' classes take them."""
    require(config, {"rope_scaling": None})
    return {"rope_type": "default", "rope_theta": float(fields(config, ["rope_theta"])["rope_theta"]), **options}
