"""The tiny LLaDA checkpoint and what was recorded from the method's public release on it."""

import json
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from stabledrl.backbones import Policy, load_policy
from stabledrl.types import Vocabulary

_CASES = Path(__file__).parents[1] / "cases"


def load_golden() -> dict[str, Tensor]:
    return load_file(_CASES / "llada_training" / "cases.safetensors")


def golden_vocabulary() -> Vocabulary:
    meta = json.loads((_CASES / "llada_training" / "meta.json").read_text())
    return Vocabulary(
        mask_token_id=meta["mask_token_id"],
        pad_token_id=meta["eos_token_id"],
        end_token_ids=(meta["eos_token_id"],),
        num_candidates=512,
    )


def load_llada() -> Policy:
    meta = json.loads((_CASES / "llada_training" / "meta.json").read_text())
    return load_policy(_CASES / "backbones" / "llada", mask_token_id=meta["mask_token_id"])
