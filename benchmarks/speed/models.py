"""Models with random weights and LLaDA-8B's proportions, small enough to time on one core."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from stabledrl.backbones import Policy
from stabledrl.randomness import row_keys
from stabledrl.types import Sequences, Vocabulary

HEAD_SHARE = 0.0742
"""Parameters of LLaDA-8B's head over those of its layers."""
PAD, END, MASK, FIRST = 0, 1, 2, 3
"""Special ids, and the first one that is none."""


def make_policy(
    *,
    hidden_size: int = 128,
    layers: int = 4,
    vocabulary_size: int | None = None,
    block_size: int | None = None,
    ends: bool = True,
) -> Policy:
    """A bidirectional or block-causal Llama; by default with a vocabulary that makes the head LLaDA's share.

    Args:
        hidden_size: Width; the feed-forward layer is three times as wide, as LLaDA's.
        layers: Depth.
        vocabulary_size: V.
        block_size: Tokens per block; None for bidirectional attention.
        ends: Whether a token ends a completion.
    """
    layer_size = 4 * hidden_size**2 + 3 * hidden_size * (3 * hidden_size)
    size = vocabulary_size or round(HEAD_SHARE * layers * layer_size / hidden_size)
    options: dict[str, Any] = {"is_causal": False, "attn_implementation": "sdpa"}
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden_size // 32),
        intermediate_size=3 * hidden_size,
        max_position_embeddings=4096,
        initializer_range=0.1,
        tie_word_embeddings=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=END,
        use_cache=False,
        **options,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    vocabulary = Vocabulary(
        mask_token_id=MASK, pad_token_id=PAD, end_token_ids=(END,) if ends else (), num_candidates=size
    )
    return Policy(model, None, vocabulary, family="native", source=None, block_size=block_size)


def make_prompts(policy: Policy, rows: int, length: int, *, seed: int = 0) -> Tensor:
    """(rows, length) int64, one prompt for all rows of a group."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST, policy.vocabulary.num_candidates, (1, length), generator=generator).repeat(rows, 1)


def make_keys(rows: int, *, seed: int = 0) -> Tensor:
    """(rows,) int64, keys of a group."""
    return row_keys(seed, 0, torch.zeros(rows, dtype=torch.int64), torch.arange(rows))


def make_sequences(policy: Policy, rows: int, prompt: int, completion: int, *, seed: int = 0) -> Sequences:
    """A group of whole random completions."""
    generator = torch.Generator().manual_seed(seed + 1)
    completions = torch.randint(FIRST, policy.vocabulary.num_candidates, (rows, completion), generator=generator)
    token_ids = torch.cat([make_prompts(policy, rows, prompt, seed=seed), completions], dim=1)
    return Sequences(
        token_ids=token_ids,
        attention_mask=torch.ones_like(token_ids, dtype=torch.bool),
        completion_mask=torch.ones_like(completions, dtype=torch.bool),
        row_keys=make_keys(rows, seed=seed),
    )


@dataclass(frozen=True, kw_only=True)
class EndingAt:
    """A policy whose rows end at given positions, and nowhere else.

    Attributes:
        policy: Predicts everything but the end.
        ends: (V,) int64, the position, counted from the sequence's start, at which a row ends, by its first token.
    """

    policy: Policy
    ends: Tensor

    @torch.no_grad()
    def __call__(
        self, token_ids: Tensor, attention_mask: Tensor | None = None, *, keep: Tensor | None = None, **options: Any
    ) -> Tensor:
        """Logits, see `stabledrl.protocols.Denoiser`; of each row's end token 1e4 at its place, -1e4 elsewhere."""
        logits = self.policy(token_ids, attention_mask, keep=keep, **options)
        at = torch.arange(token_ids.shape[1]).expand_as(token_ids) if keep is None else keep
        logits[..., END] = torch.where(at == self.ends[token_ids[:, :1]], 1e4, -1e4)
        return logits
