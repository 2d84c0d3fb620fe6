"""Models made and exported here: a transformers class whose config says that it attends both ways."""

from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from stabledrl.backbones.loading import load_config, load_model, load_tokenizer
from stabledrl.backbones.policy import Policy
from stabledrl.errors import UserInputError
from stabledrl.protocols import Backbone
from stabledrl.types import Vocabulary

_END, _MASK = "<|end|>", "<|mask|>"


class Native(Backbone):
    """Models in transformers' own layout: `is_causal` false and a `mask_token_id` in config.json.

    Attention is bidirectional, or block-causal where config.json has a `block_length`.
    """

    family = "native"

    def matches(self, config: dict[str, Any]) -> bool:
        """Whether config.json describes a bidirectional model with a mask token and needs no remote code."""
        plain = "auto_map" not in config and config.get("stabledrl_family", self.family) == self.family
        return plain and config.get("is_causal") is False and "mask_token_id" in config

    def load(self, path: str, *, dtype: torch.dtype, mask_token_id: int | None, block_size: int | None) -> Policy:
        """Loads model and tokenizer.

        Raises:
            UserInputError: Another block size is asked for than the model's, a special token is outside the vocabulary,
                or a file is unusable.
        """
        config: Any = load_config(path)
        own_block = getattr(config, "block_length", None)
        if block_size not in (None, own_block):
            known = "a full-attention model" if own_block is None else f"a model of block size {own_block}"
            raise UserInputError(f"block_size {block_size} given, but {path!r} is {known}; leave it out")
        if own_block is not None and (type(own_block) is not int or own_block < 1):
            raise UserInputError(f"block_length {own_block!r} of {path!r} must be a whole number of at least 1")
        tokenizer = load_tokenizer(path)
        mask = config.mask_token_id if mask_token_id is None else mask_token_id
        end = tokenizer.eos_token_id
        if end is None:
            raise UserInputError(f"the tokenizer of {path!r} has no end token (eos_token)")
        for name, token in (("mask_token_id", mask), ("end token id", end)):
            if not isinstance(token, int) or not 0 <= token < config.vocab_size:
                raise UserInputError(f"{name} {token!r} of {path!r} is outside its vocabulary of {config.vocab_size}")
        if mask == end:
            raise UserInputError(f"mask_token_id {mask} of {path!r} is its end token; they must differ")
        # A pad_token_id would become the embedding's padding_idx: where it is the end token, that row could not learn.
        config.pad_token_id = None
        vocabulary = Vocabulary(
            mask_token_id=mask,
            pad_token_id=end,
            end_token_ids=(end,),
            num_candidates=min(len(tokenizer), config.vocab_size),
        )
        model = load_model(path, config, dtype)
        return Policy(model, tokenizer, vocabulary, family=self.family, source=path, block_size=own_block)


@dataclass(frozen=True, kw_only=True)
class NewPolicy:
    """A small character-level diffusion Llama with random weights, for models made from scratch.

    Attributes:
        characters: The characters the tokenizer knows; anything else is refused by it.
        hidden_size: Width.
        num_layers: Depth.
        num_heads: Attention heads.
        intermediate_size: Width of the feed-forward layer.
        max_length: Longest sequence, in tokens.
        block_size: Tokens per block of block-causal attention; None for bidirectional attention.
        initializer_range: Standard deviation of the initial weights.
        seed: Seed of the initial weights.
    """

    characters: str = "0123456789+-*/()=,:. ?xyz\n"
    hidden_size: int = 64
    num_layers: int = 3
    num_heads: int = 4
    intermediate_size: int = 128
    max_length: int = 128
    block_size: int | None = None
    initializer_range: float = 0.05
    seed: int = 0

    def build(self) -> Policy:
        """Makes the model and its tokenizer, on the CPU: weights depend on the seed alone.

        Raises:
            UserInputError: The shape is impossible, or characters repeat.
        """
        self._check_shape()
        tokenizer = _character_tokenizer(self.characters)
        extra: dict[str, Any] = {
            "architectures": [LlamaForCausalLM.__name__],
            "is_causal": False,
            "mask_token_id": tokenizer.mask_token_id,
            "attn_implementation": "sdpa",
        }
        if self.block_size is not None:
            extra["block_length"] = self.block_size
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            intermediate_size=self.intermediate_size,
            max_position_embeddings=self.max_length,
            initializer_range=self.initializer_range,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            # No pad_token_id: it would become the embedding's padding_idx and freeze the end token's row.
            pad_token_id=None,
            use_cache=False,
            **extra,
        )
        # Not torch.manual_seed, which would seed every GPU's generator too.
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            model = LlamaForCausalLM(config)
        vocabulary = Vocabulary(
            mask_token_id=tokenizer.mask_token_id,
            pad_token_id=tokenizer.eos_token_id,
            end_token_ids=(tokenizer.eos_token_id,),
            num_candidates=len(tokenizer),
        )
        return Policy(model, tokenizer, vocabulary, family=Native.family, source=None, block_size=self.block_size)

    def _check_shape(self) -> None:
        for name in ("hidden_size", "num_layers", "num_heads", "intermediate_size", "max_length"):
            if getattr(self, name) < 1:
                raise UserInputError(f"{name} {getattr(self, name)} must be at least 1")
        if self.block_size is not None and self.block_size < 1:
            raise UserInputError(f"block_size {self.block_size} must be at least 1, or null for full attention")
        if self.hidden_size % (2 * self.num_heads):
            raise UserInputError(
                f"hidden_size {self.hidden_size} must be a multiple of twice num_heads {self.num_heads}, "
                f"as rotary positions need an even width per head"
            )


def _character_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    if len(set(characters)) != len(characters) or not characters:
        raise UserInputError(f"characters {characters!r} must be distinct and at least one")
    ids = {token: index for index, token in enumerate([_END, _MASK, *characters])}
    tokenizer = Tokenizer(models.WordLevel(ids))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_END, pad_token=_END, mask_token=_MASK, clean_up_tokenization_spaces=False
    )
