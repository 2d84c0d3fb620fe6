"""Log-probabilities of given tokens are those of the logits, for every family, and reach a wrapped module's forward."""

from typing import Any

import pytest
import torch
from tests.backbones.golden import GOLDEN, random_tokens
from torch import Tensor, nn

from stabledrl.backbones import Policy

LENGTH = 16


def asked(policy: Policy) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, a mask with padding, ragged positions to keep, and a target for each."""
    tokens, mask = random_tokens(3, LENGTH), torch.ones(3, LENGTH, dtype=torch.bool)
    mask[1, :4] = False
    keep = torch.zeros_like(mask)
    keep[0, [1, 7]] = True
    keep[1, 5:] = True
    targets = torch.randint(0, policy.model.config.vocab_size, (int(keep.sum()),))
    return tokens, mask, keep, targets


def from_logits(policy: Policy, tokens: Tensor, mask: Tensor, keep: Tensor, targets: Tensor) -> Tensor:
    logits = policy(tokens, mask, keep=keep)
    return logits.float().log_softmax(dim=-1)[torch.arange(len(targets)), targets]


def gradients(policy: Policy, found: Tensor) -> dict[str, Tensor]:
    policy.zero_grad()
    found.backward(torch.linspace(-1, 1, len(found)))
    return {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("name", GOLDEN)
def test_values_and_gradients_are_those_of_the_logits(name: str) -> None:
    policy = GOLDEN[name].load()
    given = asked(policy)
    tokens, mask, keep, targets = given
    expected = from_logits(policy, *given)
    found = policy(tokens, mask, keep=keep, targets=targets)
    assert found.dtype == torch.float32
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-6)
    own, other = gradients(policy, found), gradients(policy, expected)
    assert own.keys() == other.keys()
    assert any("lm_head" in weight for weight in own)
    for weight, gradient in other.items():
        torch.testing.assert_close(own[weight], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_bf16_weights_give_float32_log_probabilities_of_their_own_logits(name: str) -> None:
    policy = GOLDEN[name].load().bfloat16()
    given = asked(policy)
    tokens, mask, keep, targets = given
    found = policy(tokens, mask, keep=keep, targets=targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, from_logits(policy, *given), atol=1e-6, rtol=1e-6)


class Doubling(nn.Linear):
    """A head whose weight is not all that it computes."""

    def forward(self, hidden: Tensor) -> Tensor:
        return 2 * super().forward(hidden)


def test_a_head_that_is_more_than_its_weight_is_run_and_not_read() -> None:
    policy = GOLDEN["llada"].load()
    tokens, mask, keep, targets = given = asked(policy)
    plain = policy(tokens, mask, keep=keep, targets=targets)
    policy.model.get_output_embeddings().__class__ = Doubling
    found = policy(tokens, mask, keep=keep, targets=targets)
    torch.testing.assert_close(found, from_logits(policy, *given))
    assert (found - plain).abs().max() > 0.1


def test_no_targets_are_empty() -> None:
    policy = GOLDEN["llada"].load()
    keep = torch.zeros(2, LENGTH, dtype=torch.bool)
    found = policy(random_tokens(2, LENGTH), keep=keep, targets=torch.zeros(0, dtype=torch.int64))
    assert found.shape == (0,)


def test_the_whole_vocabularys_logits_are_never_made() -> None:
    policy = GOLDEN["llada"].load()
    tokens, mask, keep, targets = asked(policy)
    shapes: list[Any] = []
    policy.model.get_output_embeddings().register_forward_hook(lambda *given: shapes.append(given[2].shape))
    policy(tokens, mask, keep=keep, targets=targets)
    assert shapes == []
    policy(tokens, mask, keep=keep)
    assert shapes == [(len(targets), policy.model.config.vocab_size)]
