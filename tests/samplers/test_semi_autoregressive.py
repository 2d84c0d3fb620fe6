from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.samplers.denoisers import (
    VOCABULARY,
    ContextDenoiser,
    ScriptedDenoiser,
    cut,
    decode,
    plain_decoding,
    random_prompts,
)
from torch import Tensor

from stabledrl.errors import UserInputError
from stabledrl.protocols import Denoiser, Sampler
from stabledrl.samplers import SemiAutoregressiveSampler

REMASKING = ["low_confidence", "random"]


@pytest.mark.parametrize("remasking", REMASKING)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(("block_size", "steps"), [(8, 12), (6, 24), (24, 7), (24, 1)])
def test_equals_a_plain_loop_over_rows_with_logits_everywhere(
    remasking: Any, temperature: float, block_size: int, steps: int
) -> None:
    forward, (prompts, _) = ContextDenoiser(end_bias=1.0), random_prompts(6)
    keys = torch.arange(6) * 977 + 13
    sampler = SemiAutoregressiveSampler(24, block_size, steps, remasking)
    ours = decode(sampler, forward, prompts, keys=keys, temperature=temperature)
    for row in range(6):
        tokens, steps_of, length = cut(
            *plain_decoding(
                forward,
                prompts[row],
                keys[row],
                length=24,
                block_size=block_size,
                steps=steps,
                remasking=remasking,
                temperature=temperature,
            )
        )
        assert ours.token_ids[row].tolist() == tokens
        assert ours.step_map[row].tolist() == steps_of
        assert ours.completion_mask[row].tolist() == [True] * length + [False] * (24 - length)


def test_prompt_tokens_that_look_like_mask_or_end_tokens_are_data() -> None:
    prompts = torch.tensor([[VOCABULARY.mask_token_id, 131, 5], [7, 5, VOCABULARY.mask_token_id]])
    prompts[:, 0] += 100
    sampler = SemiAutoregressiveSampler(8, 4, 4)
    completions = decode(sampler, ScriptedDenoiser(8), prompts, temperature=0)
    assert completions.completion_mask.sum(dim=1).tolist() == [4, 8]


class Watching:
    """Checks every request against what the sampler may ask for."""

    def __init__(self, inner: Denoiser, prompt_length: int, block_size: int) -> None:
        self.inner, self.prompt_length, self.block_size = inner, prompt_length, block_size
        self.widths: list[int] = []

    def __call__(
        self, token_ids: Tensor, attention_mask: Tensor | None = None, *, keep: Tensor | None = None, **_: Any
    ) -> Tensor:
        assert keep is not None
        assert keep.dtype == torch.int64
        assert not torch.is_grad_enabled()
        masked = token_ids == VOCABULARY.mask_token_id
        for row, places in enumerate(keep.tolist()):
            undecided = masked[row].nonzero().flatten().tolist()
            block = (undecided[0] - self.prompt_length) // self.block_size
            end = self.prompt_length + (block + 1) * self.block_size
            assert places == [place for place in undecided if place < end]
            assert masked[row, end:].all()
        self.widths.append(keep.shape[1])
        return self.inner(token_ids, attention_mask, keep=keep)


@pytest.mark.parametrize("remasking", REMASKING)
def test_the_policy_is_asked_only_for_masked_positions_of_the_active_block(remasking: Any) -> None:
    forward = Watching(ContextDenoiser(end_bias=-9.0), prompt_length=5, block_size=8)
    decode(SemiAutoregressiveSampler(16, 8, 6, remasking), forward, random_prompts(4)[0])
    assert forward.widths == [8, 5, 2] * 2


@pytest.mark.parametrize(
    ("ends", "rows"),
    [
        ([7, 3, 0, 7], [4] * 4),
        ([15, 8, 12, 15], [4] * 8),
        ([7, 15, 31, 7], [4] * 4 + [2] * 4 + [1] * 8),
        ([99, 31, 24, 99], [4] * 16),
    ],
)
def test_ended_rows_leave_the_batch_after_their_block(ends: list[int], rows: list[int]) -> None:
    forward = ScriptedDenoiser(32)
    prompts = torch.tensor([[100 + end, 8] for end in ends])
    completions = decode(SemiAutoregressiveSampler(32, 8, 16), forward, prompts, temperature=0)
    assert forward.rows == rows
    assert completions.completion_mask.sum(dim=1).tolist() == [min(end + 1, 32) for end in ends]


@pytest.mark.parametrize("end", VOCABULARY.end_token_ids)
@pytest.mark.parametrize("place", [0, 5, 11])
def test_any_end_token_ends_a_completion_and_what_follows_is_taken_back(end: int, place: int) -> None:
    prompts = torch.tensor([[100 + place, 8]])
    completions = decode(SemiAutoregressiveSampler(12, 4, 12), ScriptedDenoiser(12, end), prompts, temperature=0)
    kept = place + 1
    assert completions.token_ids[0, place] == end
    assert completions.completion_mask[0].tolist() == [True] * kept + [False] * (12 - kept)
    assert (completions.token_ids[0, kept:] == VOCABULARY.mask_token_id).all()
    assert (completions.step_map[0, kept:] == -1).all()
    assert (completions.step_map[0, :kept] >= 0).all()
    assert (completions.token_ids[0, :kept] != VOCABULARY.mask_token_id).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision_policies_are_sampled_like_their_logits_in_float32(dtype: torch.dtype) -> None:
    inner, sampler = ContextDenoiser(end_bias=1.0), SemiAutoregressiveSampler(24, 6, 12)

    def rounded(
        token_ids: Tensor, attention_mask: Tensor | None = None, *, keep: Tensor | None = None, **_: Any
    ) -> Tensor:
        return inner(token_ids, attention_mask, keep=keep).bfloat16().to(dtype)

    prompts, _ = random_prompts(6)
    completions = decode(sampler, rounded, prompts)
    tokens, steps = plain_decoding(
        rounded,
        prompts[2],
        torch.tensor(2),
        length=24,
        block_size=6,
        steps=12,
        remasking="low_confidence",
        temperature=1.0,
    )
    assert (completions.token_ids[2].tolist(), completions.step_map[2].tolist()) == cut(tokens, steps)[:2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("remasking", REMASKING)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_stop_the_run_and_name_the_row(
    value: float, remasking: Any, temperature: float
) -> None:
    inner = ContextDenoiser(end_bias=-9.0)

    def broken(
        token_ids: Tensor, attention_mask: Tensor | None = None, *, keep: Tensor | None = None, **_: Any
    ) -> Tensor:
        logits = inner(token_ids, attention_mask, keep=keep)
        logits[token_ids[:, 0] == 1, 0, 20] = value
        return logits

    prompts, _ = random_prompts(3)
    prompts[1, 0] = 1
    with pytest.raises(FloatingPointError, match=r"rows \[1\]"):
        decode(SemiAutoregressiveSampler(8, 4, 4, remasking), broken, prompts, temperature=temperature)


def test_no_rows_give_no_completions() -> None:
    completions = decode(SemiAutoregressiveSampler(8, 4, 4), ContextDenoiser(), torch.zeros(0, 5, dtype=torch.int64))
    assert completions.token_ids.shape == completions.completion_mask.shape == completions.step_map.shape == (0, 8)


def test_is_a_sampler_with_a_step_map() -> None:
    sampler = SemiAutoregressiveSampler()
    assert isinstance(sampler, Sampler)
    assert sampler.completion_length == 256
    assert sampler.provides == {"step_map"}


def _wrong() -> Iterator[tuple[dict[str, Any], str]]:
    for name in ("completion_length", "block_size", "denoising_steps"):
        for value in (0, -8, 2.5, 32.0):
            yield {name: value}, f"{name} {value} is not valid; use a positive whole number"
    yield {"completion_length": 250}, "completion_length 250 is not a multiple of block_size 32; use 224 or 256"
    yield {"completion_length": 16}, "completion_length 16 is not a multiple of block_size 32; use 32"
    yield {"denoising_steps": 100}, "denoising_steps 100 is not a multiple of the 8 blocks .* use 96 or 104"
    yield {"denoising_steps": 3}, "denoising_steps 3 is not a multiple of the 8 blocks .* use 8"
    yield {"denoising_steps": 264}, "denoising_steps 264 is more than one step per token.*8 blocks up to .*256"
    yield {"remasking": "entropy"}, "remasking 'entropy' is unknown; use one of low_confidence, random"


@pytest.mark.parametrize(("arguments", "message"), list(_wrong()))
def test_settings_that_do_not_fit_are_refused_with_what_would(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message) as error:
        SemiAutoregressiveSampler(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("temperature", [-0.1, -1.0, float("nan"), float("inf")])
def test_temperatures_that_are_not_valid_are_refused(temperature: float) -> None:
    with pytest.raises(UserInputError, match=f"temperature {temperature} is not valid; use 0"):
        decode(SemiAutoregressiveSampler(8, 4, 4), ContextDenoiser(), random_prompts(1)[0], temperature=temperature)
