"""A diffusion language model as the rest of the project sees it."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from stabledrl.backbones.attention import SDPA_OR_FLEX
from stabledrl.chunked_cross_entropy import chosen_log_probs, token_log_probs
from stabledrl.diffusion.attention import bidirectional_mask, block_causal_mask, positions_from_mask
from stabledrl.errors import UserInputError
from stabledrl.types import Vocabulary


class Policy(nn.Module):
    """One of transformers' own causal-LM classes, run with the attention of its family and aligned logits.

    Args:
        model: The transformer. Its attention becomes sdpa or, in passes that bring a `BlockMask`, flex_attention.
        tokenizer: Its tokenizer; None where the weights came without one: all but text works.
        vocabulary: Special ids and sampling candidates.
        family: Name of the backbone family.
        source: Path or hub id the weights came from; None for a model made here.
        block_size: Tokens per block of a block-causal model; None for bidirectional attention.
        shifted: Whether the model's own logits at position i predict token i + 1.

    Raises:
        UserInputError: The model's attention is not sdpa: others misread boolean masks, without an error.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        vocabulary: Vocabulary,
        *,
        family: str,
        source: str | None,
        block_size: int | None = None,
        shifted: bool = False,
    ) -> None:
        super().__init__()
        attention = model.config._attn_implementation
        if attention not in ("sdpa", SDPA_OR_FLEX):
            raise UserInputError(f"attn_implementation {attention!r} of the model must be 'sdpa'")
        model.set_attn_implementation(SDPA_OR_FLEX)
        self.model = model
        self._tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.family = family
        self.source = source
        self.block_size = block_size
        self.shifted = shifted
        self.adapters: dict[str, Any] = {}
        """Settings of adapters and the weights they were made for, part of the fingerprint; empty without adapters."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer.

        Raises:
            UserInputError: The model has none.
        """
        if self._tokenizer is None:
            raise UserInputError(f"no tokenizer beside the weights of {self.source!r}: text needs its tokenizer.json")
        return self._tokenizer

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint must agree with before its weights fit: family, vocabulary size, mask id and shape."""
        config = self.model.config
        return {
            "family": self.family,
            "model_type": config.model_type,
            "vocab_size": config.vocab_size,
            "mask_token_id": self.vocabulary.mask_token_id,
            "block_size": self.block_size,
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_hidden_layers,
            **self.adapters,
        }

    def describe(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights, so that it can be checked and exported on its own."""
        return {"fingerprint": self.fingerprint, "source": self.source, "files": self.description_files()}

    def description_files(self) -> dict[str, str]:
        """The text files (config, tokenizer) that make a model directory of bare weights, by name."""
        with tempfile.TemporaryDirectory() as directory:
            self.model.config.save_pretrained(directory)
            if self._tokenizer is not None:
                self._tokenizer.save_pretrained(directory)
            return {file.name: file.read_text(encoding="utf-8") for file in sorted(Path(directory).iterdir())}

    def new_cache(self) -> DynamicCache:
        """An empty cache of keys and values."""
        return DynamicCache(config=self.model.config)

    def logits(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | BlockMask | None = None,
        *,
        keep: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: DynamicCache | None = None,
    ) -> Tensor:
        """Computes logits; those at position i predict token i. See `stabledrl.protocols.Denoiser`.

        `attention_mask` may also be a `BlockMask` (N or 1, 1, T, T), with position_ids: then flex_attention runs.

        Returns:
            (N, T, V), (N, n, V), or (M, V) for M True positions in row-major order, in the model's precision.
        """
        logits: Tensor = self.model(
            **self._inputs(token_ids, attention_mask, position_ids),
            cache=cache,
            use_cache=cache is not None,
            logits_to_keep=0 if keep is None else self._own_positions(keep),
        ).logits
        if self.shifted and keep is None:
            logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
        return logits

    def log_probs(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | BlockMask | None = None,
        *,
        keep: Tensor,
        targets: Tensor,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Computes the log-probabilities of given tokens, without holding the logits of the vocabulary at once.

        Args:
            token_ids: (N, T) int64.
            attention_mask: As for `logits`.
            keep: (N, T) bool, M True positions.
            targets: (M,) int64, a token for each in row-major order.
            position_ids: As for `logits`.

        Returns:
            (M,) float32.
        """
        head = self.model.get_output_embeddings()
        if type(head) is not nn.Linear:
            # An adapter on the head, for one: what it computes is not in its weight.
            logits = self.logits(token_ids, attention_mask, keep=keep, position_ids=position_ids)
            return chosen_log_probs(logits, targets)
        inputs = self._inputs(token_ids, attention_mask, position_ids)
        hidden: Tensor = self.model.base_model(**inputs, use_cache=False).last_hidden_state
        return token_log_probs(hidden[self._own_positions(keep)], head.weight, head.bias, targets).float()

    def _inputs(
        self, token_ids: Tensor, attention_mask: Tensor | BlockMask | None, position_ids: Tensor | None
    ) -> dict[str, Any]:
        """What transformers' model is to read, with the attention of the family."""
        if attention_mask is None and self.block_size is not None:
            attention_mask = torch.ones_like(token_ids, dtype=torch.bool)
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
            attention_mask = attention_mask.bool()
            position_ids = positions_from_mask(attention_mask) if position_ids is None else position_ids
            attention_mask = (
                bidirectional_mask(attention_mask)
                if self.block_size is None
                else block_causal_mask(attention_mask, position_ids, self.block_size)
            )
        # sdpa would add the ones of a 0/1 float mask to the scores, without an error.
        boolean = not isinstance(attention_mask, Tensor) or attention_mask.dtype == torch.bool
        assert boolean, "a 4D attention mask must be boolean"
        return {
            "input_ids": token_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "is_causal": False,
        }

    def _own_positions(self, keep: Tensor) -> Tensor:
        """Where the model itself has the logits of the asked positions."""
        if not self.shifted:
            return keep
        if keep.dtype != torch.bool:
            return (keep - 1).clamp_min(0)
        assert not keep[:, 0].any(), "a shifted model does not predict the first token"
        return keep.roll(-1, dims=1)

    def forward(self, *arguments: Any, targets: Tensor | None = None, **options: Any) -> Tensor:
        """Same as `logits`, or with targets as `log_probs`: the name by which wrappers (DDP, FSDP) call a module."""
        if targets is None:
            return self.logits(*arguments, **options)
        return self.log_probs(*arguments, targets=targets, **options)
