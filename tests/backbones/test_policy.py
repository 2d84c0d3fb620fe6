import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from stabledrl.backbones import NewPolicy, Policy
from stabledrl.errors import UserInputError

TOLERANCE = 1e-5
LENGTH = 7


@pytest.fixture(scope="module")
def policy() -> Policy:
    # Large weights, so that a wrong mask moves logits by far more than rounding does.
    return NewPolicy(hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, initializer_range=0.3).build()


@pytest.fixture
def tokens(policy: Policy) -> Tensor:
    return torch.randint(2, policy.vocabulary.num_candidates, (3, LENGTH))


def padded(rows: int = 3) -> Tensor:
    mask = torch.ones(rows, LENGTH, dtype=torch.bool)
    for row in range(rows):
        mask[row, :row] = False
    return mask


MASKS: dict[str, Callable[[], Tensor | None]] = {
    "no mask": lambda: None,
    "2D, all real": lambda: torch.ones(3, LENGTH, dtype=torch.bool),
    "2D, left padding": padded,
    "2D, integers": lambda: padded().long(),
    "4D": lambda: padded()[:, None, None, :].expand(-1, 1, LENGTH, -1),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@torch.no_grad()
def test_last_token_moves_first_logits(policy: Policy, tokens: Tensor, mask: Callable[[], Tensor | None]) -> None:
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] - 1) % policy.vocabulary.num_candidates
    moved = (policy.logits(tokens, mask()) - policy.logits(changed, mask())).abs().amax(-1)
    shown = mask()
    unpadded = shown is None or bool(shown.all())
    first_real = torch.zeros(3, dtype=torch.long) if unpadded else torch.arange(3)
    assert (moved[torch.arange(3), first_real] > 0.05).all()


@torch.no_grad()
def test_causal_mask_is_told_apart(policy: Policy, tokens: Tensor) -> None:
    causal = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] - 1) % policy.vocabulary.num_candidates
    assert torch.equal(policy.logits(tokens, causal)[:, :-1], policy.logits(changed, causal)[:, :-1])
    assert (policy.logits(tokens, causal) - policy.logits(tokens)).abs().max() > 0.05


@pytest.mark.parametrize("width", [1, 5, 40])
@torch.no_grad()
def test_left_padding_changes_no_logit(policy: Policy, tokens: Tensor, width: int) -> None:
    filler = torch.randint(2, policy.vocabulary.num_candidates, (3, width))
    mask = torch.cat([torch.zeros(3, width, dtype=torch.bool), torch.ones(3, LENGTH, dtype=torch.bool)], dim=1)
    got = policy.logits(torch.cat([filler, tokens], dim=1), mask)[:, width:]
    torch.testing.assert_close(got, policy.logits(tokens), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("as_integers", [False, True])
@torch.no_grad()
def test_real_tokens_are_numbered_from_zero(policy: Policy, tokens: Tensor, as_integers: bool) -> None:
    # Rotary positions are relative, so that the logits alone do not tell.
    seen: list[Tensor] = []
    hook = policy.model.register_forward_pre_hook(
        lambda module, arguments, options: seen.append(options["position_ids"]), with_kwargs=True
    )
    policy.logits(tokens, padded().long() if as_integers else padded())
    hook.remove()
    assert seen[0].tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 2, 3, 4]]


@torch.no_grad()
def test_row_does_not_depend_on_its_batch(policy: Policy, tokens: Tensor) -> None:
    mask = padded()
    together = policy.logits(tokens, mask)
    for row in range(3):
        alone = policy.logits(tokens[row : row + 1, row:])
        torch.testing.assert_close(together[row : row + 1, row:], alone, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@torch.no_grad()
def test_keep_by_index_gathers_positions_per_row(
    policy: Policy, tokens: Tensor, mask: Callable[[], Tensor | None]
) -> None:
    keep = torch.tensor([[0, 6], [5, 2], [3, 3]])
    everywhere = policy.logits(tokens, mask())
    expected = torch.stack([everywhere[row, keep[row]] for row in range(3)])
    torch.testing.assert_close(policy.logits(tokens, mask(), keep=keep), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@torch.no_grad()
def test_keep_by_mask_is_row_major(policy: Policy, tokens: Tensor, mask: Callable[[], Tensor | None]) -> None:
    keep = torch.zeros(3, LENGTH, dtype=torch.bool)
    keep[0, [1, 6]] = True
    keep[2, [2, 3, 4]] = True
    expected = policy.logits(tokens, mask())[keep]
    assert expected.shape[0] == 5
    torch.testing.assert_close(policy.logits(tokens, mask(), keep=keep), expected, atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_keep_of_nothing_is_empty(policy: Policy, tokens: Tensor) -> None:
    keep = torch.zeros(3, LENGTH, dtype=torch.bool)
    assert policy.logits(tokens, keep=keep).shape == (0, policy.model.config.vocab_size)


@torch.no_grad()
def test_4d_mask_with_positions_equals_2d_mask(policy: Policy, tokens: Tensor) -> None:
    mask = padded()
    positions = (mask.long().cumsum(1) - 1).clamp_min(0)
    four = mask[:, None, None, :].expand(-1, 1, LENGTH, -1)
    got = policy.logits(tokens, four, position_ids=positions)
    torch.testing.assert_close(got[mask], policy.logits(tokens, mask)[mask], atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_position_ids_are_used(policy: Policy, tokens: Tensor) -> None:
    order = torch.arange(LENGTH).expand(3, -1)
    torch.testing.assert_close(policy.logits(tokens, position_ids=order), policy.logits(tokens))
    assert (policy.logits(tokens, position_ids=order.flip(1)) - policy.logits(tokens)).abs().max() > 0.05


@torch.no_grad()
def test_repeated_positions_do_not_split_the_sequence(policy: Policy, tokens: Tensor) -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]]).expand(3, -1)
    everything = torch.ones(3, LENGTH, dtype=torch.bool)
    torch.testing.assert_close(
        policy.logits(tokens, position_ids=positions),
        policy.logits(tokens, everything, position_ids=positions),
        atol=TOLERANCE,
        rtol=0,
    )


def test_float_4d_mask_is_refused(policy: Policy, tokens: Tensor) -> None:
    with pytest.raises(AssertionError, match="boolean"):
        policy.logits(tokens, torch.ones(3, 1, LENGTH, LENGTH))


def test_model_with_attention_that_misreads_masks_is_refused(policy: Policy) -> None:
    eager = LlamaForCausalLM._from_config(copy.deepcopy(policy.model.config), attn_implementation="eager")
    with pytest.raises(UserInputError, match="'eager'"):
        Policy(eager, policy.tokenizer, policy.vocabulary, family="native", source=None)


def test_gradient_reaches_every_parameter(policy: Policy, tokens: Tensor) -> None:
    policy.zero_grad()
    end = policy.vocabulary.end_token_ids[0]
    tokens[:, -1] = end
    policy(tokens, padded()).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in policy.parameters())
    embedding: Any = policy.model.get_input_embeddings().weight.grad
    assert embedding[end].abs().max() > 0
    policy.zero_grad()


@torch.no_grad()
def test_forward_is_logits(policy: Policy, tokens: Tensor) -> None:
    assert torch.equal(policy(tokens, padded()), policy.logits(tokens, padded()))


def test_description_rebuilds_the_directory_without_weights(policy: Policy) -> None:
    described = policy.describe()
    assert described["fingerprint"] == policy.fingerprint
    assert described["source"] is None
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= described["files"].keys()
    assert all(isinstance(text, str) for text in described["files"].values())


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"characters": "0123456789"}, "vocab_size"),
        ({"hidden_size": 32}, "hidden_size"),
        ({"num_layers": 3}, "num_hidden_layers"),
    ],
)
def test_fingerprint_tells_shapes_apart(changed: dict[str, Any], name: str) -> None:
    base = NewPolicy(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=8)
    first, second = base.build().fingerprint, dataclasses.replace(base, **changed).build().fingerprint
    assert [key for key in first if first[key] != second[key]] == [name]
