"""Dropout of adapters: in the passes of an update and in no other, and the same however they are made."""

import copy

import pytest
import torch
from tests.adapters import TOKENS, adapted
from tests.training import same, tiny_policy, weights
from torch import Tensor

from stabledrl.backbones.lora import FeatureDropout, WithoutAdapters, dropout_without_gradient, set_dropout_step

pytest.importorskip("peft")


def test_dropout_acts_in_passes_with_gradient_only() -> None:
    features = torch.ones(2, 3, 1000)
    dropout = FeatureDropout(0.25, seed=0, number=0)
    with torch.no_grad():
        assert torch.equal(dropout(features), features)
        with dropout_without_gradient(dropout, 0):
            inside = dropout(features)
        assert torch.equal(dropout(features), features)
    assert torch.equal(dropout(features), inside)
    assert inside.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert inside.mean().item() == pytest.approx(1, abs=0.06)
    assert torch.equal(inside, inside[:1, :1].expand_as(inside))  # the same for all tokens


def test_dropout_is_drawn_anew_for_every_step_adapter_and_seed() -> None:
    def drawn(step: int = 0, seed: int = 0, number: int = 0) -> Tensor:
        dropout = FeatureDropout(0.5, seed, number)
        set_dropout_step(dropout, step)
        kept: Tensor = dropout(torch.ones(400)) > 0
        return kept

    assert torch.equal(drawn(), drawn())
    for other in (drawn(step=1), drawn(seed=1), drawn(number=1)):
        assert 120 < (drawn() ^ other).sum() < 280


def test_dropout_is_of_the_adapters_alone() -> None:
    policy = adapted(tiny_policy(), dropout=0.5)
    with torch.no_grad():
        whole = policy(TOKENS)
        assert torch.equal(WithoutAdapters(policy)(TOKENS), tiny_policy()(TOKENS))
    first = policy(TOKENS)
    set_dropout_step(policy, 1)
    assert not torch.equal(first, whole)
    assert not torch.equal(policy(TOKENS), first)
    with torch.no_grad(), dropout_without_gradient(policy, 0):
        assert torch.equal(policy(TOKENS), first)
    assert same(weights(copy.deepcopy(policy)), weights(policy))
