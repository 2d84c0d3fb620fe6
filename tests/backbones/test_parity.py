"""Logits against those recorded from the families' own code, in float32 on the same weights."""

import pytest
import torch
from tests.backbones.golden import GOLDEN
from torch import Tensor

from stabledrl.backbones import Policy

TOLERANCE = 1e-4
PLAIN = [
    (name, case) for name in GOLDEN for case in GOLDEN[name].cases() if case not in ("noisy_clean", "cached_decode")
]


@pytest.fixture(scope="module")
def policies() -> dict[str, Policy]:
    return {name: golden.load() for name, golden in GOLDEN.items()}


def worst(got: Tensor, recorded: Tensor, real: Tensor, *, shifted: bool) -> float:
    """Largest difference on real rows; a family whose code does not align its logits was recorded one to the left."""
    if shifted:
        got, recorded, real = got[:, 1:], recorded[:, :-1], real[:, 1:] & real[:, :-1]
    assert real.any()
    return float((got - recorded)[real].abs().max())


def test_every_family_is_recorded() -> None:
    assert {name for name, _ in PLAIN} == set(GOLDEN)
    assert len(PLAIN) == 12


@pytest.mark.parametrize(("name", "case"), PLAIN)
@torch.no_grad()
def test_logits_equal_the_recorded_ones(policies: dict[str, Policy], name: str, case: str) -> None:
    policy, recorded = policies[name], GOLDEN[name].cases()[case]
    mask = recorded.get("attention_mask")
    got = policy.logits(recorded["input_ids"], mask)
    real = torch.ones(got.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    assert worst(got, recorded["logits"], real, shifted=policy.shifted) < TOLERANCE


@pytest.mark.parametrize("name", GOLDEN)
@torch.no_grad()
def test_causal_attention_would_be_noticed(policies: dict[str, Policy], name: str) -> None:
    policy = policies[name]
    recorded = next(case for kind, case in GOLDEN[name].cases().items() if kind in ("nopad", "blockcausal"))
    tokens = recorded["input_ids"]
    causal = torch.ones(1, 1, tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    got = policy.logits(tokens, causal, position_ids=positions)
    real = torch.ones_like(tokens, dtype=torch.bool)
    assert worst(got, recorded["logits"], real, shifted=policy.shifted) > 1


@torch.no_grad()
def test_unshifted_logits_of_dream_would_be_noticed(policies: dict[str, Policy]) -> None:
    recorded = GOLDEN["dream"].cases()["nopad"]
    got = policies["dream"].logits(recorded["input_ids"])
    real = torch.ones_like(recorded["input_ids"], dtype=torch.bool)
    assert worst(got, recorded["logits"], real, shifted=False) > 1


@torch.no_grad()
def test_noisy_and_clean_copies_in_one_pass_equal_the_recorded_ones(policies: dict[str, Policy]) -> None:
    recorded = GOLDEN["sdar"].cases()["noisy_clean"]
    got = policies["sdar"].logits(recorded["input_ids"], recorded["mask4d"], position_ids=recorded["position_ids"])
    assert float((got - recorded["logits"]).abs().max()) < TOLERANCE


@torch.no_grad()
def test_cached_decoding_equals_the_recorded_one(policies: dict[str, Policy]) -> None:
    """Each noisy block is read after the clean blocks before it, kept in the cache."""
    policy, recorded = policies["sdar"], GOLDEN["sdar"].cases()["cached_decode"]
    assert policy.block_size is not None
    clean, noisy, cache = recorded["input_ids"], recorded["noisy"], policy.new_cache()
    assert clean.shape[1] % policy.block_size == 0
    for start in range(0, clean.shape[1], policy.block_size):
        block = slice(start, start + policy.block_size)
        mask = torch.ones(1, 1, policy.block_size, block.stop, dtype=torch.bool)
        positions = torch.arange(block.start, block.stop).expand(len(clean), -1)
        got = policy.logits(noisy[:, block], mask, position_ids=positions, cache=cache)
        assert float((got - recorded["logits"][:, block]).abs().max()) < TOLERANCE
        cache.crop(-policy.block_size)
        policy.logits(clean[:, block], mask, position_ids=positions, cache=cache)
