"""Adapters on a policy: what they add, what they leave alone, what they refuse, and merging them."""

import sys
from typing import Any

import pytest
import torch
from tests.adapters import TOKENS, adapted, adapters, difference, without_adapters
from tests.backbones.golden import BLOCK_CAUSAL, GOLDEN, random_tokens
from tests.training import same, tiny_policy, weights
from torch import nn
from torch.nn.functional import linear

from stabledrl.backbones.lora import (
    LoRA,
    WithoutAdapters,
    is_adapter,
    load_adapters,
    merge,
)
from stabledrl.errors import UserInputError

pytest.importorskip("peft")

LINEAR = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


@pytest.mark.parametrize("name", GOLDEN)
@torch.no_grad()
def test_every_family_has_its_own_logits_without_adapters_and_others_with_them(name: str) -> None:
    tokens = random_tokens(2, 16)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[0, :3] = False
    policy = GOLDEN[name].load()
    before = policy(tokens, mask)
    reference = WithoutAdapters(adapted(policy))
    after = policy(tokens, mask)
    assert (after - before)[mask].abs().max() > 1e-3
    assert torch.equal(reference(tokens, mask), before)
    assert torch.equal(policy(tokens, mask), after)  # the adapters are on again


@pytest.mark.parametrize("name", GOLDEN)
@torch.no_grad()
def test_merged_weights_have_the_logits_of_the_adapters(name: str) -> None:
    tokens = random_tokens(2, 16)
    policy = adapted(GOLDEN[name].load())
    expected = policy(tokens)
    merged = merge(policy)
    assert difference(merged(tokens), expected) < 1e-5
    assert weights(merged.model).keys() == weights(GOLDEN[name].load().model).keys()
    assert merged.fingerprint == GOLDEN[name].load().fingerprint


@torch.no_grad()
def test_a_later_block_stays_out_of_sight() -> None:
    policy = adapted(tiny_policy(block_size=2))
    changed = TOKENS.clone()
    changed[:, 4:] = 3
    assert torch.equal(policy(changed)[:, :4], policy(TOKENS)[:, :4])
    assert not torch.equal(policy(changed)[:, 4:], policy(TOKENS)[:, 4:])


def test_the_output_of_a_layer_is_the_formula_of_the_paper() -> None:
    policy = adapted(tiny_policy(), rank=3, alpha=12, target_modules=["q_proj"])
    layer = policy.model.get_submodule("model.layers.0.self_attn.q_proj")
    inputs = torch.randn(5, 16)
    own = {name.partition(".")[0]: weight for name, weight in layer.named_parameters()}
    expected = linear(inputs, own["base_layer"]) + 12 / 3 * linear(linear(inputs, own["lora_A"]), own["lora_B"])
    torch.testing.assert_close(layer(inputs), expected)


def test_new_adapters_change_nothing() -> None:
    policy = tiny_policy()
    LoRA(rank=2).add_to(policy)
    assert torch.equal(policy(TOKENS), tiny_policy()(TOKENS))


def test_adapters_alone_are_trained() -> None:
    policy = adapted(tiny_policy())
    policy(TOKENS).sum().backward()
    for name, parameter in policy.named_parameters():
        assert parameter.requires_grad == is_adapter(name)
        assert (parameter.grad is not None) == is_adapter(name)
    assert same(tiny_policy().model.state_dict(), without_adapters(policy))


def test_the_reference_has_no_gradient_and_takes_none_away() -> None:
    policy = adapted(tiny_policy())
    assert not WithoutAdapters(policy)(TOKENS).requires_grad
    policy(TOKENS).sum().backward()
    assert all(parameter.grad is not None for name, parameter in policy.named_parameters() if is_adapter(name))


def test_a_failing_pass_of_the_reference_leaves_the_adapters_on() -> None:
    policy = adapted(tiny_policy())
    before = policy(TOKENS)
    with pytest.raises(IndexError):
        WithoutAdapters(policy)(torch.tensor([[99]]))
    assert torch.equal(policy(TOKENS), before)


def test_by_default_all_linear_layers_but_the_head_have_adapters() -> None:
    policy = adapted(tiny_policy())
    assert policy.adapters["lora_target_modules"] == LINEAR
    assert len(adapters(policy)) == 2 * len(LINEAR)
    assert not [name for name in adapters(policy) if "lm_head" in name]


@pytest.mark.parametrize("name", BLOCK_CAUSAL)
def test_experts_have_none(name: str) -> None:
    assert not [weight for weight in adapters(adapted(GOLDEN[name].load())) if ".experts." in weight]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_are_float32_whatever_the_weights_are(dtype: torch.dtype) -> None:
    policy = adapted(tiny_policy().to(dtype))
    assert {weight.dtype for weight in adapters(policy).values()} == {torch.float32}
    assert {weight.dtype for weight in without_adapters(policy).values()} == {dtype}
    assert policy(TOKENS).dtype == dtype


@torch.no_grad()
def test_what_bfloat16_would_round_away_is_merged() -> None:
    policy = tiny_policy().to(torch.bfloat16)
    LoRA(rank=2, alpha=2).add_to(policy)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            nn.init.constant_(parameter, 1e-6)
    before = without_adapters(policy)
    merged = weights(merge(policy).model)
    assert all(weight.dtype == torch.float32 for weight in merged.values())
    for name, weight in merged.items():
        moved = weight != before[name].float()
        assert moved.float().mean() > 0.8 if name.split(".")[-2] in LINEAR else not moved.any(), name
        assert (weight.bfloat16() == before[name]).float().mean() > 0.9, name


def test_first_adapters_depend_on_the_seed_alone() -> None:
    first = tiny_policy()
    LoRA(rank=2, seed=5).add_to(first)
    torch.randn(100)
    state = torch.get_rng_state()
    second, other = tiny_policy(), tiny_policy()
    LoRA(rank=2, seed=5).add_to(second)
    LoRA(rank=2, seed=6).add_to(other)
    assert same(adapters(first), adapters(second))
    assert not same(adapters(first), adapters(other))
    assert torch.equal(torch.get_rng_state(), state)


def test_adding_twice_is_adding_once() -> None:
    policy = adapted(tiny_policy())
    before = weights(policy)
    LoRA(rank=3, alpha=6).add_to(policy)
    assert same(weights(policy), before)
    with pytest.raises(UserInputError, match=r"'lora_rank': 4.* other adapters already.*'lora_rank': 3"):
        LoRA(rank=4, alpha=6).add_to(policy)


def test_a_fingerprint_tells_the_adapters_and_the_weights_they_are_for() -> None:
    policy, other = adapted(tiny_policy()), adapted(tiny_policy(seed=1))
    same_again, rounded = adapted(tiny_policy()), adapted(tiny_policy().to(torch.bfloat16))
    assert policy.fingerprint == same_again.fingerprint
    assert policy.fingerprint["base_weights"] != other.fingerprint["base_weights"]
    assert policy.fingerprint["base_weights"] != rounded.fingerprint["base_weights"]
    assert LoRA.of_fingerprint(policy.fingerprint) == LoRA(rank=3, alpha=6, target_modules=LINEAR)
    assert LoRA.of_fingerprint(tiny_policy().fingerprint) is None


def test_adapters_are_loaded_whole_or_not_at_all() -> None:
    trained, fresh = adapted(tiny_policy()), adapted(tiny_policy())
    load_adapters(fresh, adapters(trained))
    assert same(weights(fresh), weights(trained))
    missing = adapters(trained)
    gone = missing.popitem()[0]
    with pytest.raises(UserInputError, match=f"1 differ .first: {gone}"):
        load_adapters(fresh, missing)
    with pytest.raises(UserInputError, match=r"1 differ .first: other"):
        load_adapters(fresh, {**adapters(trained), "other": torch.zeros(1)})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"rank": 0}, r"lora.rank 0 must be at least 1"),
        ({"alpha": 0}, r"lora.alpha 0 must be at least 1"),
        ({"dropout": 1.0}, r"lora.dropout 1.0 must be at least 0 and below 1"),
        ({"dropout": -0.1}, r"lora.dropout -0.1"),
        ({"dropout": float("nan")}, r"lora.dropout nan"),
    ],
)
def test_values_out_of_range_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserInputError, match=told):
        LoRA(**settings)


@pytest.mark.parametrize("target", ["q_prj", "lm_head", "embed_tokens", "input_layernorm", ""])
def test_targets_that_are_no_linear_layer_are_refused_though_others_are(target: str) -> None:
    with pytest.raises(UserInputError, match=f"target_modules '{target}' is not one of down_proj, .*v_proj$"):
        LoRA(target_modules=["q_proj", target]).add_to(tiny_policy())


def test_no_targets_are_refused() -> None:
    with pytest.raises(UserInputError, match=r"target_modules \[\] names no layer"):
        LoRA(target_modules=[]).add_to(tiny_policy())


def test_without_peft_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserInputError, match=r"lora needs the package peft: pip install 'stabledrl\[lora\]'"):
        LoRA()
