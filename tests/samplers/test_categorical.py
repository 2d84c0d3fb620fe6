import pytest
import torch
from torch import Tensor

from stabledrl.randomness import Purpose, uniforms
from stabledrl.samplers.categorical import mask_candidates, sample_tokens
from stabledrl.types import Vocabulary

JUST_BELOW_ONE = 1.0 - 2.0**-53
SIZES = [7, 512, 1500]  # less than a chunk, a whole one, several with a shorter last one


def keyed(rows: int, positions: int) -> Tensor:
    return uniforms(torch.arange(rows), Purpose.TOKEN, 0, positions)


def chi_square(tokens: Tensor, probabilities: Tensor) -> float:
    """Standardised chi-square statistic: about normal with mean 0 and deviation 1 if the probabilities are right."""
    expected = probabilities * tokens.numel()
    observed = torch.bincount(tokens.flatten(), minlength=len(expected)).double()
    freedom = len(expected) - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("size", SIZES)
def test_keyed_draws_follow_the_softmax_at_that_temperature(size: int, temperature: float) -> None:
    logits, shape = 0.7 * torch.randn(size), (100, 1000) if size < 100 else (50, 600)
    tokens, _ = sample_tokens(logits.expand(*shape, -1), keyed(*shape), temperature)
    exact = (logits.double() / temperature).softmax(0)
    other = (logits.double() / (temperature * 1.5)).softmax(0)
    assert abs(chi_square(tokens, exact)) < 4
    assert chi_square(tokens, other) > 8


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("size", SIZES)
def test_evenly_spaced_uniforms_give_every_token_its_share_to_within_one_draw(size: int, temperature: float) -> None:
    logits, count = torch.randn(size), 4000
    grid = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, _ = sample_tokens(logits.expand(count, -1), grid, temperature)
    share = (logits.double() / temperature).softmax(0) * count
    assert (torch.bincount(tokens, minlength=size) - share).abs().max() < 1.01
    assert (tokens.diff() >= 0).all()


def test_draws_equal_one_long_cumulative_sum() -> None:
    logits, draws = 2 * torch.randn(300, 1500), keyed(300, 1)[:, 0]
    tokens, _ = sample_tokens(logits, draws, 0.9)
    cumulative = (logits.double() / 0.9).softmax(-1).cumsum(-1)
    assert torch.equal(tokens, (cumulative <= draws[:, None]).sum(-1))


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_probability_is_that_of_the_softmax_at_temperature_1(temperature: float) -> None:
    logits = 3 * torch.randn(40, 3, 700)
    tokens, probability = sample_tokens(logits, keyed(40, 3), temperature)
    exact = logits.double().softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    assert probability.dtype == torch.float32
    torch.testing.assert_close(probability.double(), exact, rtol=2e-6, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_temperature_0_takes_the_first_of_the_most_likely_tokens(size: int) -> None:
    logits = torch.randint(0, 3, (200, size)).float()
    logits[:, : size // 2].clamp_(max=1.0)
    tokens, _ = sample_tokens(logits, torch.zeros(200), 0.0)
    assert tokens.tolist() == [row.index(max(row)) for row in logits.tolist()]


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 3.0])
def test_excluded_candidates_are_never_chosen_from_a_vocabulary_of_130_thousand(
    scale: float, temperature: float
) -> None:
    size = 130_047
    vocabulary = Vocabulary(mask_token_id=126_336, pad_token_id=1, end_token_ids=(1,), num_candidates=size - 700)
    edges = torch.tensor([0.0, 2.0**-53, 0.5, 1 - 2.0**-24, 1 - 2.0**-30, 1 - 2.0**-52, JUST_BELOW_ONE]).double()
    draws = torch.cat([edges, keyed(1, 5)[0]])
    logits = scale * torch.randn(len(draws), size)
    logits[:, vocabulary.mask_token_id] = logits[:, -1] = 100.0
    tokens, probability = sample_tokens(mask_candidates(logits, vocabulary), draws, temperature)
    assert (tokens != vocabulary.mask_token_id).all()
    assert (tokens < vocabulary.num_candidates).all()
    assert (tokens >= 0).all()
    assert probability.isfinite().all()


@pytest.mark.parametrize("size", [5, 512, 513, 130_047])
def test_only_remaining_candidate_is_chosen_whatever_the_uniform(size: int) -> None:
    draws = torch.tensor([0.0, 0.3, JUST_BELOW_ONE], dtype=torch.float64)
    for only in (0, size // 2, size - 1):
        logits = torch.full((3, size), -torch.inf)
        logits[:, only] = -5.0
        tokens, probability = sample_tokens(logits, draws, 1.0)
        assert tokens.tolist() == [only] * 3
        assert probability.tolist() == [1.0] * 3


def test_extreme_uniforms_choose_the_first_and_the_last_candidate() -> None:
    logits = torch.zeros(2, 1500)
    logits[:, :3] = logits[:, 1400:] = -torch.inf
    tokens, _ = sample_tokens(logits, torch.tensor([0.0, JUST_BELOW_ONE], dtype=torch.float64), 1.0)
    assert tokens.tolist() == [3, 1399]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45, 1e-300])
def test_small_temperatures_draw_the_most_likely_token(temperature: float) -> None:
    logits = torch.randn(50, 600)
    tokens, probability = sample_tokens(logits, keyed(50, 1)[:, 0], temperature)
    assert torch.equal(tokens, logits.argmax(-1))
    assert probability.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_half_precision_logits_are_computed_with_in_float32(dtype: torch.dtype, temperature: float) -> None:
    logits, draws = torch.randn(64, 3000).to(dtype), keyed(64, 1)[:, 0]
    tokens, probability = sample_tokens(logits, draws, temperature)
    exact, exact_probability = sample_tokens(logits.float(), draws, temperature)
    assert torch.equal(tokens, exact)
    assert torch.equal(probability, exact_probability)
    if temperature:
        cumulative = (logits.double() / temperature).softmax(-1).cumsum(-1)
        assert torch.equal(tokens, (cumulative <= draws[:, None]).sum(-1))


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_large_logits_do_not_overflow(shift: float) -> None:
    logits, draws = torch.randint(-8, 8, (30, 40)).float(), keyed(30, 1)[:, 0]
    for ours, plain in zip(sample_tokens(logits + shift, draws, 1.0), sample_tokens(logits, draws, 1.0)):
        assert torch.equal(ours, plain)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_broken_logits_give_a_probability_of_nan_and_a_token_within_the_vocabulary(
    value: float, temperature: float
) -> None:
    logits = torch.randn(2, 1000)
    logits[1, 600] = value
    tokens, probability = sample_tokens(logits, torch.tensor([0.5, 0.5]), temperature)
    assert probability.isnan().tolist() == [False, True]
    assert ((tokens >= 0) & (tokens < 1000)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mask_candidates_excludes_mask_token_and_unused_rows_and_leaves_its_input_alone(dtype: torch.dtype) -> None:
    vocabulary = Vocabulary(mask_token_id=2, pad_token_id=0, end_token_ids=(0,), num_candidates=6)
    logits = torch.randn(2, 3, 8).to(dtype)
    before = logits.clone()
    masked = mask_candidates(logits, vocabulary)
    assert masked.dtype == torch.float32
    assert torch.equal(logits, before)
    assert masked.isneginf().any(dim=0).any(dim=0).tolist() == [False, False, True, False, False, False, True, True]
    assert torch.equal(masked[..., [0, 1, 3, 4, 5]], before[..., [0, 1, 3, 4, 5]].float())
