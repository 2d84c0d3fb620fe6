"""What can be said of sharding without other processes: layers, recomputed activations, weights kept elsewhere."""

import copy
from contextlib import suppress
from typing import Any

import pytest
import torch
from tests.training import same, tiny_policy, weights
from torch import nn

from stabledrl.backbones import Policy
from stabledrl.errors import UserInputError
from stabledrl.sharding import checkpoint_activations, decoder_layers, gathered_once, shard_group

CPU = torch.device("cpu")


def test_layers_are_those_that_transformers_keeps_whole() -> None:
    policy = tiny_policy(num_layers=3)
    assert decoder_layers(policy) == list(policy.model.model.layers)


def test_a_model_that_does_not_name_its_layers_is_refused() -> None:
    with pytest.raises(UserInputError, match="Linear does not name its layers"):
        decoder_layers(nn.Linear(2, 2))


def gradients(policy: Policy) -> tuple[list[torch.Tensor], int]:
    """Of a scalar of the logits; and how often the first layer's attention ran."""
    calls = []
    hook = policy.model.model.layers[0].self_attn.register_forward_hook(lambda *arguments: calls.append(1))
    logits = policy.logits(torch.arange(12).reshape(2, 6), torch.ones(2, 6, dtype=torch.bool))
    logits.log_softmax(dim=-1)[..., 3].sum().backward()
    hook.remove()
    found = [parameter.grad.clone() for parameter in policy.parameters() if parameter.grad is not None]
    return found, len(calls)


def test_recomputed_activations_change_neither_gradient_nor_names() -> None:
    plain, recomputed = tiny_policy(num_layers=2), tiny_policy(num_layers=2)
    checkpoint_activations(recomputed)
    checkpoint_activations(recomputed)  # once is enough
    (expected, once), (found, twice) = gradients(plain), gradients(recomputed)
    assert same(expected, found)
    assert (once, twice) == (1, 2)
    assert same(weights(plain), weights(recomputed))


def test_nothing_is_recomputed_without_gradient_and_caches_work() -> None:
    policy = tiny_policy(num_layers=2)
    checkpoint_activations(policy)
    calls: list[Any] = []
    policy.model.model.layers[0].self_attn.register_forward_hook(lambda *arguments: calls.append(1))
    with torch.no_grad():
        policy.logits(torch.arange(6)[None])
        cache = policy.new_cache()
        whole = torch.ones(1, 1, 6, 6, dtype=torch.bool)
        policy.logits(torch.arange(6)[None], whole, position_ids=torch.arange(6)[None], cache=cache)
    assert len(calls) == 2
    assert cache.get_seq_length() == 6


def test_a_copy_of_a_model_with_recomputed_activations_is_of_its_own() -> None:
    policy = tiny_policy(num_layers=2)
    checkpoint_activations(policy)
    copied = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
        assert copied.logits(torch.arange(6)[None]).abs().max() == 0
        assert policy.logits(torch.arange(6)[None]).abs().max() > 0


def test_whole_weights_have_no_shards_to_gather() -> None:
    policy = tiny_policy()
    assert shard_group(policy) is None
    with gathered_once(policy, CPU) as within:
        assert within is policy


@pytest.mark.parametrize("fails", [False, True])
def test_weights_kept_elsewhere_are_on_the_device_within(fails: bool) -> None:
    model, moved = nn.Linear(2, 2), []
    model.to = lambda device: moved.append(str(device))  # type: ignore[assignment,method-assign]
    with suppress(ZeroDivisionError), gathered_once(model, torch.device("meta")):
        assert moved == ["meta"]
        if fails:
            raise ZeroDivisionError
    assert moved == ["meta", "cpu"]
