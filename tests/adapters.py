"""Policies with adapters, as training leaves them."""

from typing import Any

import torch
from tests.training import tiny_module, weights
from torch import Tensor, nn

from stabledrl.backbones import Policy
from stabledrl.backbones.lora import LoRA, is_adapter
from stabledrl.module import DiffusionPolicyModule

TOKENS = torch.tensor([[2, 3, 1, 4, 5, 6], [5, 0, 1, 1, 7, 2]])
SETTINGS = {"rank": 4, "alpha": 8}


def adapted(policy: Policy, **settings: Any) -> Policy:
    """With adapters as after training: B is 0 in new ones."""
    LoRA(**{"rank": 3, "alpha": 6, **settings}).add_to(policy)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.01)
    return policy


def adapters(policy: Policy) -> dict[str, Tensor]:
    return {name: weight for name, weight in weights(policy.model).items() if is_adapter(name)}


def without_adapters(policy: Policy) -> dict[str, Tensor]:
    return {
        name.replace(".base_layer", ""): weight
        for name, weight in weights(policy.model).items()
        if not is_adapter(name)
    }


def difference(logits: Tensor, expected: Tensor) -> float:
    """The largest one, in units of the largest logit."""
    return ((logits - expected).abs().max() / expected.abs().max()).item()


def lora_module(**options: Any) -> DiffusionPolicyModule:
    lora = LoRA(**SETTINGS, dropout=options.pop("dropout", 0.0))
    return tiny_module(**{"lora": lora, "kl_coefficient": 0.1, **options})
