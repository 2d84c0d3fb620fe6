"""Block-diffusion decoding against a plain loop, and what it may and may not depend on."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.likelihoods.block_rows import block_policy
from tests.samplers.denoisers import same
from torch import Tensor

from stabledrl.backbones import Policy
from stabledrl.errors import UserInputError
from stabledrl.protocols import Sampler
from stabledrl.randomness import Purpose, uniforms
from stabledrl.samplers import BlockDiffusionSampler
from stabledrl.samplers.categorical import mask_candidates, sample_tokens
from stabledrl.types import Completions

REMASKING = ["low_confidence", "random", "dynamic"]
PROMPT_LENGTHS = [37, 37, 37, 33, 32, 3, 1, 8, 20]


def make_policy(block_size: int, **changed: Any) -> Policy:
    return block_policy(block_size, **{"max_length": 256, "initializer_range": 0.4, **changed})


def make_prompts(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Nine ragged prompts; the first three are the same."""
    count, width = len(PROMPT_LENGTHS), max(PROMPT_LENGTHS)
    ids = torch.randint(2, 28, (count, width), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(width) >= width - torch.tensor(PROMPT_LENGTHS)[:, None]
    ids[1:3] = ids[0]
    return ids.masked_fill(~mask, 0), mask


class Counting:
    """The policy, with the shape of every request."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.shapes: list[tuple[int, int]] = []

    def __call__(self, token_ids: Tensor, *arguments: Any, **options: Any) -> Tensor:
        self.shapes.append((token_ids.shape[0], token_ids.shape[1]))
        return self.policy(token_ids, *arguments, **options)

    def new_cache(self) -> Any:
        return self.policy.new_cache()


def decode(
    sampler: BlockDiffusionSampler,
    policy: Any,
    prompts: tuple[Tensor, Tensor],
    rows: Any = slice(None),
    temperature: float = 1.0,
) -> Completions:
    vocabulary = policy.policy.vocabulary if isinstance(policy, Counting) else policy.vocabulary
    keys = torch.arange(len(prompts[0])) * 31
    ids, mask = (part[rows] for part in prompts)
    return sampler(policy, ids, mask, vocabulary=vocabulary, row_keys=keys[rows], temperature=temperature)


@torch.no_grad()
def plain_decoding(
    policy: Policy, prompt: Tensor, key: Tensor, length: int, steps: int, remasking: str, temperature: float
) -> tuple[list[int], list[int]]:
    """One row without padding or cache: tokens and steps until the block that holds the first end token."""
    vocabulary, size = policy.vocabulary, policy.block_size
    assert size is not None
    whole = -(-(len(prompt) + length) // size) * size
    ids = torch.full((whole,), vocabulary.mask_token_id)
    ids[: len(prompt)] = prompt
    steps_of, per_block = [-1] * length, steps * size // length
    for number, start in enumerate(range(len(prompt) // size * size, whole, size)):
        left = [at for at in range(start, start + size) if 0 <= at - len(prompt) < length]
        for step in range(number * per_block, (number + 1) * per_block):
            if not left:
                break
            count = size // per_block + (step % per_block < size % per_block)
            logits = mask_candidates(policy.logits(ids[None, : start + size])[0, left], vocabulary)
            places = torch.tensor(left) - len(prompt)
            tokens, found = sample_tokens(logits, uniforms(key[None], Purpose.TOKEN, step, places)[0], temperature)
            score = uniforms(key[None], Purpose.REMASKING, step, places)[0] if remasking == "random" else found
            chosen = set(sorted(range(len(left)), key=lambda i: (-float(score[i]), i))[:count])
            if remasking == "dynamic":
                chosen |= {i for i in range(len(left)) if found[i] > 0.5}
            for i in chosen:
                ids[left[i]], steps_of[left[i] - len(prompt)] = tokens[i], step
            left = [at for i, at in enumerate(left) if i not in chosen]
        if any(int(token) in vocabulary.end_token_ids for token in ids[max(start, len(prompt)) : start + size]):
            break
    return ids[len(prompt) : len(prompt) + length].tolist(), steps_of


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("remasking", REMASKING)
@pytest.mark.parametrize("block_size", [4, 8, 32])
def test_cached_decoding_is_full_recompute_is_the_plain_loop(
    block_size: int, remasking: Any, temperature: float
) -> None:
    policy, prompts = make_policy(block_size), make_prompts()
    cached, plain = (
        decode(
            BlockDiffusionSampler(64, block_size, 32, remasking, threshold=0.5, use_cache=use_cache),
            policy,
            prompts,
            temperature=temperature,
        )
        for use_cache in (True, False)
    )
    assert same(cached, plain)
    for row in (0, 3, 4, 6):
        prompt, key = prompts[0][row][prompts[1][row]], torch.tensor(row * 31)
        tokens, steps = plain_decoding(policy, prompt, key, 64, 32, remasking, temperature)
        kept = int(cached.completion_mask[row].sum())
        assert cached.token_ids[row, :kept].tolist() == tokens[:kept]
        assert cached.step_map[row, :kept].tolist() == steps[:kept]
        ends = [place for place, token in enumerate(tokens) if token in policy.vocabulary.end_token_ids]
        assert kept == (ends[0] + 1 if ends else 64)
    if temperature:
        assert len(set(cached.completion_mask.sum(dim=1).tolist())) > 2


@pytest.mark.parametrize("use_cache", [True, False])
def test_completions_follow_their_rows_whatever_the_batch_and_order(use_cache: bool) -> None:
    policy, prompts = make_policy(4), make_prompts()
    sampler = BlockDiffusionSampler(32, 4, 16, use_cache=use_cache)
    together = decode(sampler, policy, prompts)
    order = torch.randperm(9)
    assert same(decode(sampler, policy, prompts, order), together.select(order))
    for size in (1, 2, 5):
        parts = [decode(sampler, policy, prompts, slice(start, start + size)) for start in range(0, 9, size)]
        assert same(Completions.cat(parts), together)


def test_padding_does_not_matter() -> None:
    policy, (ids, mask) = make_policy(4), make_prompts()
    sampler = BlockDiffusionSampler(32, 4, 16)
    more = (torch.nn.functional.pad(ids, (5, 0), value=9), torch.nn.functional.pad(mask, (5, 0), value=False))
    assert same(decode(sampler, policy, more), decode(sampler, policy, (ids, mask)))


def without_ends(policy: Policy) -> Policy:
    """Makes the end token never the draw, so that no row leaves early."""
    policy.vocabulary = type(policy.vocabulary)(**{**vars(policy.vocabulary), "end_token_ids": (-1,)})
    return policy


def test_one_prefill_of_distinct_prompts_and_commits_fused_into_the_next_blocks_first_step() -> None:
    forward, prompts = Counting(without_ends(make_policy(4))), make_prompts()
    rows = torch.tensor([0, 1, 2, 4, 4, 4, 4])  # Two prompts, of 37 and 32 tokens, in groups of 3 and 4.
    decode(BlockDiffusionSampler(16, 4, 8), forward, prompts, rows)
    prefill, *steps = forward.shapes
    assert prefill == (2, 36)
    # 2 steps a block; row 4 is aligned and has done after 4 blocks, the others need a fifth of one token: one step.
    assert steps == [(7, 4), (7, 4), *[(7, 8), (7, 4)] * 3, (3, 8)]


def test_prompts_shorter_than_a_block_need_no_prefill() -> None:
    forward, prompts = Counting(without_ends(make_policy(32))), make_prompts()
    decode(BlockDiffusionSampler(32, 32, 4), forward, prompts, torch.tensor([5, 6]))
    assert [width for _, width in forward.shapes] == [32] * 4 + [64]


def test_ended_rows_leave_the_batch_and_decoding_stops_with_the_last_one() -> None:
    policy, prompts = make_policy(4), make_prompts()
    policy.vocabulary = type(policy.vocabulary)(**{**vars(policy.vocabulary), "end_token_ids": tuple(range(2, 8))})
    forward, sampler = Counting(policy), BlockDiffusionSampler(64, 4, 64)
    completions = decode(sampler, forward, prompts)
    lengths = completions.completion_mask.sum(dim=1)
    assert lengths.max() < 64
    tail = torch.tensor(PROMPT_LENGTHS) % 4
    blocks = ((tail + lengths - 1) // 4 + 1).tolist()
    asked = Counter(count for count, width in forward.shapes[1:] if width == 8)
    alive = Counter(sum(number > done for number in blocks) for done in range(1, max(blocks)))
    assert asked == alive
    ends = torch.isin(completions.token_ids, torch.arange(2, 8)) & completions.completion_mask
    assert torch.equal(ends.sum(dim=1), torch.ones(9, dtype=torch.int64))
    assert (completions.token_ids[~completions.completion_mask] == policy.vocabulary.mask_token_id).all()
    assert (completions.step_map[~completions.completion_mask] == -1).all()


def test_end_tokens_of_the_prompts_tail_end_nothing() -> None:
    policy, (ids, mask) = without_ends(make_policy(4)), make_prompts()
    vocabulary = policy.vocabulary
    expected = decode(BlockDiffusionSampler(16, 4, 16), policy, (ids, mask))
    policy.vocabulary = type(vocabulary)(**{**vars(vocabulary), "end_token_ids": (int(ids[0, -1]),)})
    row = torch.tensor([0])
    found = decode(BlockDiffusionSampler(16, 4, 16), policy, (ids, mask), row)
    ends = (expected.token_ids[0] == ids[0, -1]).nonzero().flatten().tolist()
    assert int(found.completion_mask.sum()) == (ends[0] + 1 if ends else 16)
    assert int(found.completion_mask.sum()) > 3


@pytest.mark.parametrize(("threshold", "steps"), [(0.0, 1), (1.0, 8)])
def test_dynamic_decides_all_above_the_threshold_and_never_takes_more_steps_than_static(
    threshold: float, steps: int
) -> None:
    policy, prompts = without_ends(make_policy(8)), make_prompts()
    dynamic = BlockDiffusionSampler(16, 8, 16, "dynamic", threshold=threshold)
    found = decode(dynamic, policy, prompts, torch.tensor([4, 7]), temperature=0)  # Prompts of whole blocks.
    assert all(len(set(block)) == steps for row in found.step_map.tolist() for block in (row[:8], row[8:]))
    if threshold == 1:
        static = BlockDiffusionSampler(16, 8, 16)
        assert same(found, decode(static, policy, prompts, torch.tensor([4, 7]), temperature=0))


@pytest.mark.parametrize("use_cache", [True, False])
def test_logits_that_are_not_finite_stop_the_run_and_name_the_row(use_cache: bool) -> None:
    policy, prompts = make_policy(4), make_prompts()
    with torch.no_grad():
        policy.model.get_input_embeddings().weight[9] = torch.nan  # type: ignore[union-attr, index]
    ids, mask = prompts
    ids = ids.masked_fill(ids == 9, 10)
    ids[4, -1] = 9
    with pytest.raises(FloatingPointError, match=r"rows \[4\]"):
        decode(BlockDiffusionSampler(8, 4, 8, use_cache=use_cache), policy, (ids, mask), temperature=0)


def test_no_rows_give_no_completions() -> None:
    completions = decode(BlockDiffusionSampler(8, 4, 4), make_policy(4), make_prompts(), slice(0, 0))
    assert completions.token_ids.shape == completions.step_map.shape == (0, 8)


def test_is_a_sampler_that_names_its_block_size() -> None:
    sampler = BlockDiffusionSampler(block_size=8)
    assert isinstance(sampler, Sampler)
    assert sampler.attention_block_size == 8
    assert sampler.provides == {"step_map"}


def test_a_policy_without_cache_is_refused_and_a_wrapped_one_found() -> None:
    policy, prompts = make_policy(4), make_prompts()

    def bare(*arguments: Any, **options: Any) -> Tensor:
        return policy(*arguments, **options)

    ids, mask = prompts
    options: dict[str, Any] = {"vocabulary": policy.vocabulary, "row_keys": torch.arange(9), "temperature": 0.0}
    with pytest.raises(UserInputError, match=r"function has no key-value cache .* use_cache: false"):
        BlockDiffusionSampler(8, 4, 8)(bare, ids, mask, **options)
    wrapped: Any = torch.nn.Module()
    wrapped.module = policy
    wrapped.forward = policy.forward
    assert same(
        BlockDiffusionSampler(8, 4, 8)(wrapped, ids, mask, **options),
        BlockDiffusionSampler(8, 4, 8, use_cache=False)(bare, ids, mask, **options),
    )


def _wrong() -> Iterator[tuple[dict[str, Any], str]]:
    for name in ("completion_length", "block_size", "denoising_steps"):
        for value in (0, -8, 2.5):
            yield {name: value}, f"{name} {value} is not valid; use a positive whole number"
    yield {"completion_length": 250}, "completion_length 250 is not a multiple of block_size 4; use 248 or 252"
    yield {"denoising_steps": 100}, "denoising_steps 100 is not a multiple of the 64 blocks .* use 64 or 128"
    yield {"denoising_steps": 320}, "denoising_steps 320 is more than one step per token"
    yield {"remasking": "entropy"}, "remasking 'entropy' is unknown; use one of low_confidence, random, dynamic"
    for threshold in (-0.1, 1.5, float("nan")):
        yield {"threshold": threshold}, f"threshold {threshold} is not a probability"


@pytest.mark.parametrize(("arguments", "message"), list(_wrong()))
def test_settings_that_do_not_fit_are_refused_with_what_would(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message) as error:
        BlockDiffusionSampler(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("temperature", [-1.0, float("nan"), float("inf")])
def test_temperatures_that_are_not_valid_are_refused(temperature: float) -> None:
    with pytest.raises(UserInputError, match=f"temperature {temperature} is not valid; use 0"):
        decode(BlockDiffusionSampler(8, 4, 4), make_policy(4), make_prompts(), temperature=temperature)
