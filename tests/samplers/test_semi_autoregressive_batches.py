"""What a row's completion must not depend on, and what decoding must not wait for."""

from typing import Any

import pytest
import torch
from tests.samplers.denoisers import VOCABULARY, ContextDenoiser, decode, random_prompts, same
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from stabledrl.samplers import SemiAutoregressiveSampler
from stabledrl.types import Completions

REMASKING = ["low_confidence", "random"]


@pytest.fixture
def varied() -> tuple[ContextDenoiser, Tensor, Tensor, SemiAutoregressiveSampler, Completions]:
    """Rows that end in different blocks, so that compaction takes part in what follows."""
    forward, (prompts, _) = ContextDenoiser(end_bias=1.5), random_prompts(12)
    keys = torch.randint(-(2**62), 2**62, (12,))
    sampler = SemiAutoregressiveSampler(24, 6, 12)
    together = decode(sampler, forward, prompts, keys=keys)
    last_blocks = set(((together.completion_mask.sum(dim=1) - 1) // 6).tolist())
    assert len(last_blocks) >= 3
    return forward, prompts, keys, sampler, together


@pytest.mark.parametrize("size", [1, 2, 5])
def test_completions_do_not_depend_on_the_batch_size(varied: Any, size: int) -> None:
    forward, prompts, keys, sampler, together = varied
    parts = [
        decode(sampler, forward, prompts[start : start + size], keys=keys[start : start + size])
        for start in range(0, 12, size)
    ]
    assert same(Completions.cat(parts), together)


def test_completions_follow_their_rows_in_any_order(varied: Any) -> None:
    forward, prompts, keys, sampler, together = varied
    order = torch.randperm(12)
    assert same(decode(sampler, forward, prompts[order], keys=keys[order]), together.select(order))


def test_completions_do_not_depend_on_the_other_rows(varied: Any) -> None:
    forward, prompts, keys, sampler, together = varied
    others, _ = random_prompts(12, seed=99)
    mixed, mixed_keys = torch.cat([others, prompts[:3]]), torch.cat([keys + 1, keys[:3]])
    assert same(decode(sampler, forward, mixed, keys=mixed_keys).select(slice(12, 15)), together.select(slice(0, 3)))


def test_rows_with_the_same_prompt_differ_by_their_keys_only() -> None:
    forward, (prompts, _) = ContextDenoiser(end_bias=-9.0), random_prompts(1)
    completions = decode(
        SemiAutoregressiveSampler(24, 6, 12), forward, prompts.repeat(3, 1), keys=torch.tensor([4, 4, 5])
    )
    first, again, other = completions.token_ids.tolist()
    assert first == again
    assert sum(a != b for a, b in zip(first, other)) > 12


@pytest.mark.parametrize("remasking", REMASKING)
def test_padding_of_prompts_of_any_length_changes_nothing(remasking: Any) -> None:
    forward, sampler = ContextDenoiser(end_bias=1.5), SemiAutoregressiveSampler(24, 6, 12, remasking)
    prompts, _ = random_prompts(12, length=9)
    real = torch.arange(9) >= torch.arange(12)[:, None] % 7 + 2
    padded = prompts.where(real, VOCABULARY.pad_token_id)
    together = decode(sampler, forward, padded, real)
    assert len(set(together.completion_mask.sum(dim=1).tolist())) > 4
    for row in range(12):
        alone = decode(sampler, forward, prompts[row][real[row]][None], keys=torch.tensor([row]))
        assert same(alone, together.select(slice(row, row + 1)))
    assert not torch.equal(decode(sampler, forward, padded).token_ids, together.token_ids)


class HostReads(TorchDispatchMode):
    """Counts the operations whose result the host has to wait for on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        boolean_index = name in ("index", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if boolean_index or name in ("nonzero", "_local_scalar_dense", "masked_select", "equal"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("remasking", REMASKING)
def test_the_host_waits_for_the_device_at_most_once_per_block(remasking: Any) -> None:
    def flat(
        token_ids: Tensor, attention_mask: Tensor | None = None, *, keep: Tensor | None = None, **_: Any
    ) -> Tensor:
        assert keep is not None
        return (torch.arange(40.0) * (torch.arange(40) > 7)).expand(*keep.shape, -1)

    with HostReads() as reads:
        decode(SemiAutoregressiveSampler(32, 8, 32, remasking), flat, random_prompts(4)[0])
    assert 1 <= len(reads.names) <= 4
