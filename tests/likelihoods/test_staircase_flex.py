from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.likelihoods.block_rows import block_policy, block_rows
from torch.nn.attention.flex_attention import BlockMask

from stabledrl.backbones import Policy
from stabledrl.errors import UserInputError
from stabledrl.likelihoods import StaircaseElbo, staircase
from stabledrl.randomness import row_keys
from stabledrl.sharding import checkpoint_activations
from stabledrl.types import LikelihoodEstimate, Sequences

PROMPT_LENGTHS, LENGTHS = [130, 77, 2], [70, 31, 70]


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """flex_attention as plain tensor operations: compiling it takes minutes on a CPU."""
    with torch.compiler.set_stance("force_eager"):
        yield


def long_rows(policy: Policy) -> Sequences:
    """Three left-padded rows whose passes take several tiles."""
    prompt, completion = max(PROMPT_LENGTHS) + 3, max(LENGTHS)
    prompt_mask = torch.arange(prompt) >= prompt - torch.tensor(PROMPT_LENGTHS)[:, None]
    scored = torch.arange(completion) < torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(2, 28, (3, prompt + completion), generator=torch.Generator().manual_seed(0))
    ids[:, :prompt][~prompt_mask] = policy.vocabulary.pad_token_id
    ids[:, prompt:][~scored] = policy.vocabulary.mask_token_id
    return Sequences(
        token_ids=ids,
        attention_mask=torch.cat([prompt_mask, torch.ones_like(scored)], dim=1),
        completion_mask=scored,
        row_keys=row_keys(0, 0, torch.arange(3), torch.zeros(3, dtype=torch.int64)),
    )


def recorded(policy: Policy, rows: Sequences, **settings: Any) -> tuple[LikelihoodEstimate, dict[str, Any]]:
    """An estimate, and what the policy was given for it."""
    given: dict[str, Any] = {}

    def forward(**arguments: Any) -> torch.Tensor:
        given.update(arguments)
        return policy(**arguments)

    measure = StaircaseElbo(**{"block_size": policy.block_size, "reduction": "sum", **settings})
    corruption = measure.corrupt(rows, update=None)
    return measure(forward, rows, corruption, vocabulary=policy.vocabulary), given  # type: ignore[arg-type]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("block_size", [4, 8])
@torch.no_grad()
def test_flex_gives_the_dense_estimate(block_size: int, draws: int) -> None:
    policy = block_policy(block_size)
    rows = long_rows(policy)
    found, given = recorded(policy, rows, draws=draws, attention="flex")
    expected, plain = recorded(policy, rows, draws=draws, attention="dense")
    assert isinstance(given["attention_mask"], BlockMask)
    assert isinstance(plain["attention_mask"], torch.Tensor)
    columns = plain["token_ids"].shape[1]
    assert columns % 128
    assert columns > 256
    assert given["token_ids"].shape[1] == given["attention_mask"].shape[-1] == columns + -columns % 128
    assert expected.elbo.std() > 1
    torch.testing.assert_close(found.token_log_probs, expected.token_log_probs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.elbo, expected.elbo, atol=0, rtol=1e-5)
    torch.testing.assert_close(found.eubo, expected.eubo, atol=0, rtol=1e-5)
    assert torch.equal(found.scored, expected.scored)


@pytest.mark.usefixtures("uncompiled")
@torch.no_grad()
def test_no_noised_token_sees_clean_tokens_of_its_own_or_a_later_block() -> None:
    policy = block_policy(4)
    _, given = recorded(policy, block_rows(policy).select(torch.tensor([0])), attention="flex", draws=2)
    token_ids, positions = given.pop("token_ids"), given["position_ids"][0]
    ends = (positions.diff() <= 0).nonzero().flatten() + 1
    clean, blocks = int(ends[0]), positions // 4
    noised = slice(clean, int(ends[2]))
    given["keep"] = given["targets"] = None
    before = policy(token_ids, **given)[0, noised]
    for block in range(int(blocks[:clean].max()) + 1):
        changed = token_ids.clone()
        inside = torch.arange(len(positions)).lt(clean) & (blocks == block)
        changed[0, inside] = (changed[0, inside] + 1) % 20 + 2
        moved = (policy(changed, **given)[0, noised] - before).abs().amax(dim=1)
        assert (moved[blocks[noised] <= block] == 0).all()
        assert (moved[blocks[noised] > block] > 1e-4).all()


def test_flex_with_gradients_on_the_cpu_is_refused_before_the_pass() -> None:
    policy = block_policy(4)
    measure = StaircaseElbo(attention="flex")
    rows = block_rows(policy)

    def forward(**arguments: Any) -> torch.Tensor:
        raise AssertionError("the pass was made")

    with pytest.raises(UserInputError, match=r"'flex' .* cpu; use 'auto' or 'dense'"):
        measure(forward, rows, measure.corrupt(rows, update=None), vocabulary=policy.vocabulary)  # type: ignore[arg-type]


def test_auto_is_dense_on_the_cpu_and_flex_on_cuda_in_long_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    auto, limit = StaircaseElbo(), staircase.FLEX_ABOVE
    assert not auto._uses_flex(torch.device("cuda"), limit)
    assert auto._uses_flex(torch.device("cuda"), limit + 1)
    monkeypatch.setattr(staircase, "FLEX_ABOVE", 0)
    policy = block_policy(4)
    _, given = recorded(policy, block_rows(policy))
    assert isinstance(given["attention_mask"], torch.Tensor)


def test_unknown_attention_is_refused() -> None:
    with pytest.raises(UserInputError, match="attention 'sdpa' is unknown; use one of auto, dense, flex"):
        StaircaseElbo(attention="sdpa")  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("draws", [1, 2])
def test_flex_gives_the_dense_estimate_and_gradient_on_cuda(draws: int, checkpointed: bool) -> None:
    policy = block_policy(4, hidden_size=64).cuda()  # The kernel wants at least 16 numbers a head.
    if checkpointed:
        checkpoint_activations(policy)
    rows = long_rows(policy)
    rows = Sequences(**{name: value.cuda() for name, value in vars(rows).items()})
    shares, values, gradients = torch.linspace(-1, 2, 3, device="cuda"), [], []
    for attention in ("flex", "dense"):
        estimate, given = recorded(policy, rows, draws=draws, attention=attention)
        assert isinstance(given["attention_mask"], BlockMask) == (attention == "flex")
        found = torch.autograd.grad((shares * estimate.elbo).sum(), list(policy.parameters()))
        values.append(estimate.elbo.detach())
        gradients.append(torch.cat([part.flatten() for part in found]))
    torch.testing.assert_close(values[0], values[1], atol=0, rtol=1e-4)
    assert float((gradients[0] - gradients[1]).norm() / gradients[1].norm()) < 1e-3
