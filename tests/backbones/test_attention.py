import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import BlockMask

from stabledrl.backbones import NewPolicy, Policy, load_policy
from stabledrl.backbones.attention import SDPA_OR_FLEX
from stabledrl.diffusion.staircase import staircase_block_mask, staircase_mask
from stabledrl.export import export_policy
from stabledrl.sharding import checkpoint_activations

LENGTH = 128


@pytest.fixture(autouse=True)
def _uncompiled() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture
def policy() -> Policy:
    shape = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 64, "initializer_range": 0.3}
    return NewPolicy(**shape, block_size=8).build()  # type: ignore[arg-type]


def arguments() -> tuple[Tensor, Tensor, BlockMask, Tensor]:
    """Two rows, the second padded on the left: token ids, both forms of their mask, position ids."""
    columns = torch.arange(LENGTH)
    block, stream = columns % 64 // 8, (columns >= 64).long()
    real = torch.ones(2, LENGTH, dtype=torch.bool)
    real[1, :8] = False
    masks = staircase_mask(block, stream, real), staircase_block_mask(block, stream, real)
    return torch.randint(2, 20, (2, LENGTH)), *masks, (columns % 64).expand(2, -1)


def gradient(policy: Policy, logits: Tensor) -> Tensor:
    return torch.cat([part.flatten() for part in torch.autograd.grad(logits.square().sum(), list(policy.parameters()))])


@torch.no_grad()
def test_both_forms_of_a_mask_give_the_same_logits(policy: Policy) -> None:
    tokens, dense, flex, positions = arguments()
    expected = policy(tokens, dense, position_ids=positions)
    torch.testing.assert_close(policy(tokens, flex, position_ids=positions), expected, atol=1e-5, rtol=1e-5)
    elsewhere = policy(tokens, torch.ones_like(dense), position_ids=positions)
    assert (elsewhere - expected).abs().max() > 0.5


@torch.no_grad()
def test_both_forms_of_a_mask_differ_by_rounding_under_autocast(policy: Policy) -> None:
    tokens, dense, flex, positions = arguments()
    expected = policy(tokens, dense, position_ids=positions)
    with torch.autocast("cpu", torch.bfloat16):
        errors = [(policy(tokens, mask, position_ids=positions) - expected).square().mean() for mask in (dense, flex)]
    assert errors[1] < 2 * errors[0]


def test_layers_run_again_in_backward_with_the_attention_of_their_own_pass(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch has no backward kernel for the CPU and so refuses it; the plain tensor operations have one.
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    tokens, dense, flex, positions = arguments()
    expected = gradient(policy, policy(tokens, dense, position_ids=positions))
    checkpoint_activations(policy)
    passes = [policy(tokens, mask, position_ids=positions) for mask in (flex, dense, flex)]
    for logits in passes:
        assert float((gradient(policy, logits) - expected).norm() / expected.norm()) < 1e-4


def test_saved_models_do_not_name_the_attention_and_come_back_with_it(policy: Policy, tmp_path: Path) -> None:
    export_policy(policy, tmp_path / "exported")
    policy.model.save_pretrained(tmp_path / "saved")
    tokens, _, flex, positions = arguments()
    with torch.no_grad():
        expected = policy(tokens, flex, position_ids=positions)
        for name in ("exported", "saved"):
            config: dict[str, Any] = json.loads((tmp_path / name / "config.json").read_text())
            assert SDPA_OR_FLEX not in json.dumps(config)
            assert not [key for key in config if "attn" in key]
        loaded = load_policy(tmp_path / "exported")
        assert torch.equal(loaded(tokens, flex, position_ids=positions), expected)


def test_a_model_may_serve_two_policies(policy: Policy) -> None:
    again = Policy(policy.model, policy.tokenizer, policy.vocabulary, family="native", source=None, block_size=8)
    tokens, _, flex, positions = arguments()
    with torch.no_grad():
        expected = policy(tokens, flex, position_ids=positions)
        assert torch.equal(again(tokens, flex, position_ids=positions), expected)
