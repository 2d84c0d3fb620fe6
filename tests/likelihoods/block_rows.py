"""Ragged, left-padded rows for a block-causal policy, and its likelihood written as a loop over blocks."""

from typing import Any

import torch
from torch import Tensor

from stabledrl.backbones import NewPolicy, Policy
from stabledrl.randomness import row_keys
from stabledrl.types import Corruption, Sequences

PROMPT, COMPLETION = 11, 12
PROMPT_LENGTHS = [11, 9, 3, 1, 8, 4]
LENGTHS = [12, 5, 7, 1, 10, 12]


def block_policy(block_size: int, **changed: Any) -> Policy:
    shape = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 64, "initializer_range": 0.3}
    return NewPolicy(**{**shape, "block_size": block_size, **changed}).build()


def block_rows(policy: Policy, *, padding: int = 0, extra: int = 0) -> Sequences:
    """Six rows; `padding` and `extra` columns are added before the prompts and after the completions."""
    count = len(LENGTHS)
    ids = torch.randint(2, 28, (count, PROMPT + COMPLETION), generator=torch.Generator().manual_seed(0))
    before = torch.full((count, padding), policy.vocabulary.pad_token_id)
    after = torch.full((count, extra), policy.vocabulary.mask_token_id)
    ids = torch.cat([before, ids, after], dim=1)
    width = padding + PROMPT
    prompt_mask = torch.arange(width) >= width - torch.tensor(PROMPT_LENGTHS)[:, None]
    scored = torch.arange(COMPLETION + extra) < torch.tensor(LENGTHS)[:, None]
    ids[:, :width][~prompt_mask] = policy.vocabulary.pad_token_id
    ids[:, width:][~scored] = policy.vocabulary.mask_token_id
    return Sequences(
        token_ids=ids,
        attention_mask=torch.cat([prompt_mask, torch.ones_like(scored)], dim=1),
        completion_mask=scored,
        row_keys=row_keys(0, 0, torch.arange(count), torch.zeros(count, dtype=torch.int64)),
    )


def looped_elbo(policy: Policy, rows: Sequences, corruption: Corruption) -> Tensor:
    """(N,) sum over blocks of (n / k) times the masked log-probabilities, one row, draw and block a forward pass."""
    size, found = policy.block_size, []
    assert size is not None
    for row, real in enumerate(rows.attention_mask):
        tokens, masked = rows.token_ids[row][real], corruption.masked[row][:, real]
        prompt, end = int(real[: rows.prompt_length].sum()), int(real[: rows.prompt_length].sum() + rows.lengths[row])
        total = torch.zeros(())
        for draw in masked:
            for start in range(prompt // size * size, end, size):
                places = range(max(start, prompt), min(start + size, end))
                chosen = [place for place in places if draw[place]]
                view = torch.full((start + size,), policy.vocabulary.mask_token_id)
                view[: len(tokens[: start + size])] = tokens[: start + size]
                view[chosen] = policy.vocabulary.mask_token_id
                log_probs = policy.logits(view[None])[0].log_softmax(dim=-1)
                total = total + len(places) / len(chosen) * log_probs[chosen, tokens[chosen]].sum()
        found.append(total / len(masked))
    return torch.stack(found)
