"""A diffusion language model as the rest of the project sees it."""

import tempfile
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stabledrl.diffusion.attention import bidirectional_mask, positions_from_mask
from stabledrl.types import Vocabulary


class Policy(nn.Module):
    """One of transformers' own causal-LM classes, run with bidirectional attention and aligned logits.

    Args:
        model: The transformer.
        tokenizer: Its tokenizer.
        vocabulary: Special ids and sampling candidates.
        family: Name of the backbone family.
        source: Path or hub id the weights came from; None for a model made here.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        vocabulary: Vocabulary,
        *,
        family: str,
        source: str | None,
    ) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.family = family
        self.source = source

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What a checkpoint must agree with before its weights fit: family, vocabulary size, mask id and shape."""
        config = self.model.config
        return {
            "family": self.family,
            "model_type": config.model_type,
            "vocab_size": config.vocab_size,
            "mask_token_id": self.vocabulary.mask_token_id,
            "hidden_size": config.hidden_size,
            "num_hidden_layers": config.num_hidden_layers,
        }

    def describe(self) -> dict[str, Any]:
        """What a checkpoint holds beside the weights, so that it can be checked and exported on its own."""
        return {"fingerprint": self.fingerprint, "source": self.source, "files": self.description_files()}

    def description_files(self) -> dict[str, str]:
        """The text files (config, tokenizer) that make a model directory of bare weights, by name."""
        with tempfile.TemporaryDirectory() as directory:
            self.model.config.save_pretrained(directory)
            self.tokenizer.save_pretrained(directory)
            return {file.name: file.read_text(encoding="utf-8") for file in sorted(Path(directory).iterdir())}

    def logits(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        keep: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Computes logits; those at position i predict token i.

        Args:
            token_ids: (N, T) int64.
            attention_mask: (N, T) bool, True = real token; (N or 1, 1, T, T) bool, True = attend; None = all.
            keep: Where to compute logits: None for everywhere, (N, n) int64 for n positions a row, (N, T) bool.
            position_ids: (N, T) int64; by default a row's real tokens are numbered from 0.

        Returns:
            (N, T, V), (N, n, V), or (M, V) for M True positions in row-major order, in the model's precision.
        """
        if attention_mask is not None and attention_mask.ndim == 2:
            attention_mask = attention_mask.bool()
            if position_ids is None:
                position_ids = positions_from_mask(attention_mask)
            attention_mask = bidirectional_mask(attention_mask)
        output = self.model(
            input_ids=token_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=False,
            is_causal=False,
            logits_to_keep=0 if keep is None else keep,
        )
        logits: Tensor = output.logits
        return logits

    def forward(
        self, token_ids: Tensor, attention_mask: Tensor | None = None, *, keep: Tensor | None = None
    ) -> Tensor:
        """Same as `logits`: the name by which wrappers (DDP, FSDP) call a module."""
        return self.logits(token_ids, attention_mask, keep=keep)
