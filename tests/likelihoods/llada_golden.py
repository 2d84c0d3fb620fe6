"""What was recorded of the method's public release scoring completions, as this package's records."""

import json
from pathlib import Path

import torch
from tests.samplers.llada_golden import golden_vocabulary, load_golden, load_llada
from torch import Tensor

from stabledrl.types import Corruption, Sequences

__all__ = ["golden_bounds", "golden_vocabulary", "load_golden", "load_llada"]


def golden_bounds() -> tuple[Sequences, Corruption]:
    """The recorded completions and the corruptions that the release scored them on."""
    meta = json.loads((Path(__file__).parents[1] / "cases" / "llada_training" / "meta.json").read_text())
    golden, mask, prompt = load_golden(), meta["mask_token_id"], meta["prompt_length"]
    scored = golden["bounds.completion_mask"]
    after = torch.cat([torch.zeros(len(scored), prompt, dtype=torch.bool), ~scored], dim=1)
    sequences = Sequences(
        token_ids=golden["bounds.token_ids"].masked_fill(after, mask),
        attention_mask=torch.ones_like(after),
        completion_mask=scored,
        row_keys=torch.arange(len(scored)),
    )
    masked: Tensor = (golden["bounds.corrupted"] == mask) & ~after[:, None]
    chosen = masked[:, :, prompt:]
    weight = chosen * (sequences.lengths[:, None, None] / chosen.sum(dim=2, keepdim=True))
    return sequences, Corruption(masked=masked, weight=weight)
