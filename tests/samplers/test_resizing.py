"""A resized sampler differs in length and steps alone, and is refused where these do not fit."""

from typing import Any

import pytest
from tests.training import Fixed

from stabledrl.errors import UserInputError
from stabledrl.samplers import BlockDiffusionSampler, SemiAutoregressiveSampler
from stabledrl.samplers.resizing import resize

SAMPLERS = [
    SemiAutoregressiveSampler(64, block_size=16, denoising_steps=32, remasking="random"),
    BlockDiffusionSampler(64, block_size=4, denoising_steps=64, remasking="dynamic", threshold=0.7, use_cache=False),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
@pytest.mark.parametrize("length", [16, 64, 128])
def test_only_length_and_steps_change(sampler: Any, length: int) -> None:
    before = dict(vars(sampler))
    resized: Any = resize(sampler, length)
    assert type(resized) is type(sampler)
    expected = {"completion_length": length, "denoising_steps": length * before["denoising_steps"] // 64}
    assert vars(resized) == {**before, **expected}
    assert vars(sampler) == before


def test_steps_per_token_wins_over_the_samplers_own() -> None:
    resized: Any = resize(SAMPLERS[1], 256, 0.5)
    assert (resized.completion_length, resized.denoising_steps) == (256, 128)


@pytest.mark.parametrize("steps", [85, 170, 255])
def test_a_ratio_that_floats_cannot_hold_is_no_obstacle(steps: int) -> None:
    resized: Any = resize(SemiAutoregressiveSampler(255, block_size=255, denoising_steps=steps), 510)
    assert resized.denoising_steps == 2 * steps


@pytest.mark.parametrize(
    ("length", "steps_per_token", "message"),
    [
        (48, 0.3, "completion_length 48 x steps_per_token 0.3 makes 14.4 denoising steps.*multiple of 10"),
        (100, None, "completion_length 100 is not a multiple of block_size 16; use 96 or 112"),
        (64, 2.0, "denoising_steps 128 is more than one step per token"),
        (48, 1 / 48, "denoising_steps 1 is not a multiple of the 3 blocks"),
        (0, None, "completion_length 0 is not valid"),
        (-16, None, "completion_length -16 is not valid"),
    ],
)
def test_what_does_not_fit_is_refused(length: int, steps_per_token: float | None, message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        resize(SAMPLERS[0], length, steps_per_token)


class Hiding(SemiAutoregressiveSampler):
    def __init__(self, completion_length: int = 8, denoising_steps: int = 8, secret: int = 0) -> None:
        super().__init__(completion_length, 8, denoising_steps)


def test_a_sampler_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(UserInputError, match="Fixed has no setting completion_length or denoising_steps"):
        resize(Fixed(1, 2), 4)
    with pytest.raises(UserInputError, match="Hiding does not keep secret"):
        resize(Hiding(), 16)
