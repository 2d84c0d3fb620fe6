import pytest
import torch
from tests.diffusion.laws import law_of
from tests.likelihoods.joint import (
    COMPLETIONS,
    VOCABULARY,
    completion_rows,
    exact_denoiser,
    expected_elbo,
    expected_eubo,
    inconsistent_denoiser,
    random_joint,
    whole_law,
)
from torch import Tensor

from stabledrl.likelihoods import MonteCarloElbo, eubo

BETAS = [1.0, 1.5, 3.0]


def plain_eubo(log_probs: Tensor, scored: Tensor, lengths: Tensor, beta: float) -> Tensor:
    """The formula, one token at a time in float64."""
    found = []
    for row, length in enumerate(lengths.tolist()):
        terms = []
        for position in range(scored.shape[2]):
            moment = torch.zeros((), dtype=torch.float64)
            for draw in range(scored.shape[1]):
                if scored[row, draw, position]:
                    share = float(scored[row, draw].sum()) / length
                    moment = moment + (beta * log_probs[row, draw, position].double()).exp() / share
            if moment > 0:
                terms.append((moment / scored.shape[1]).log() / beta)
        found.append(torch.stack(terms).mean())
    return torch.stack(found)


def weights(scored: Tensor, lengths: Tensor) -> Tensor:
    """L / k at the scored tokens of every draw."""
    return scored * (lengths[:, None, None] / scored.sum(dim=2, keepdim=True).clamp_min(1))


def random_case(rows: int = 8, draws: int = 3, width: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    scored = torch.rand(rows, draws, width, generator=generator) < 0.4
    scored[:, :, 0] = True
    scored &= (torch.arange(width) < lengths[:, None])[:, None]
    log_probs = -5 * torch.rand(rows, draws, width, generator=generator)
    return log_probs.masked_fill(~scored, 0.0), scored, lengths


@pytest.mark.parametrize("beta", BETAS)
def test_eubo_is_its_formula(beta: float) -> None:
    log_probs, scored, lengths = random_case()
    assert not scored.any(dim=1)[:, 1:].all()
    expected = plain_eubo(log_probs, scored, lengths, beta)
    found = eubo(log_probs, scored, weights(scored, lengths), lengths, beta=beta, reduction="length_normalized")
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        eubo(log_probs, scored, weights(scored, lengths), lengths, beta=beta, reduction="sum"), found * lengths
    )


def test_eubo_works_in_log_space_where_probabilities_underflow() -> None:
    log_probs, scored, lengths = random_case()
    expected = (
        eubo(log_probs, scored, weights(scored, lengths), lengths, beta=1.5, reduction="length_normalized") - 1000
    )
    found = eubo(
        torch.where(scored, log_probs - 1000, 0.0),
        scored,
        weights(scored, lengths),
        lengths,
        beta=1.5,
        reduction="length_normalized",
    )
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_gradients_are_finite_and_right_where_tokens_are_masked_in_no_draw() -> None:
    log_probs, scored, lengths = random_case()
    log_probs.requires_grad_()
    # Anomaly mode: no NaN on the way either, which a later mask would only cover up.
    with torch.autograd.set_detect_anomaly(True):
        (gradient,) = torch.autograd.grad(
            eubo(log_probs, scored, weights(scored, lengths), lengths, beta=1.5, reduction="sum").sum(), log_probs
        )
    (expected,) = torch.autograd.grad((plain_eubo(log_probs, scored, lengths, 1.5) * lengths).sum(), log_probs)
    assert (gradient[~scored] == 0).all()
    torch.testing.assert_close(gradient, expected, atol=1e-6, rtol=1e-5)


def test_an_impossible_token_masked_in_one_draw_of_two_makes_it_minus_infinity() -> None:
    scored = torch.tensor([[[True, True], [False, True]]])
    log_probs = torch.tensor([[[-torch.inf, -1.0], [0.0, -1.0]]])
    assert (
        eubo(log_probs, scored, weights(scored, torch.tensor([2])), torch.tensor([2]), beta=1.5, reduction="sum")
        == -torch.inf
    )
    # Possible in one draw, impossible in the other: the mean over draws is what counts.
    scored = torch.ones(1, 2, 1, dtype=torch.bool)
    found = eubo(
        torch.tensor([[[-torch.inf], [-1.0]]]),
        scored,
        torch.ones(1, 2, 1),
        torch.tensor([1]),
        beta=1.0,
        reduction="sum",
    )
    assert float(found) == pytest.approx(-1.0 + torch.tensor(0.5).log().item())


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("tokens", COMPLETIONS)
def test_the_population_value_bounds_log_p_from_above_for_conditionals_of_a_joint(
    tokens: list[int], beta: float
) -> None:
    joint, rows = random_joint(len(tokens)), completion_rows(tokens)
    denoiser = exact_denoiser(joint)
    measure = MonteCarloElbo(reduction="sum", eubo_beta=beta)
    found = measure(denoiser, rows, whole_law(rows), vocabulary=VOCABULARY).eubo
    assert found is not None
    assert float(found) == pytest.approx(expected_eubo(denoiser, tokens, beta), abs=2e-5)
    assert float(found) > float(joint[tuple(tokens)].log()) + 0.01


@pytest.mark.parametrize("tokens", COMPLETIONS)
def test_the_population_value_lies_above_the_elbo_and_grows_with_beta(tokens: list[int]) -> None:
    denoiser = inconsistent_denoiser(len(tokens))
    bounds = [expected_elbo(denoiser, tokens, law_of("uniform", len(tokens)))]
    bounds += [expected_eubo(denoiser, tokens, beta) for beta in BETAS]
    rows = completion_rows(tokens)
    for beta, bound in zip(BETAS, bounds[1:], strict=True):
        measure = MonteCarloElbo(reduction="sum", eubo_beta=beta)
        found = measure(denoiser, rows, whole_law(rows), vocabulary=VOCABULARY).eubo
        assert found is not None
        assert float(found) == pytest.approx(bound, abs=2e-5)
    assert bounds == sorted(bounds)
    assert bounds[-1] > bounds[0] + 0.1


@pytest.mark.parametrize("masking", ["uniform", "stratified"])
def test_the_monte_carlo_value_approaches_the_population_value_as_draws_grow(masking: str) -> None:
    tokens = COMPLETIONS[2]
    denoiser, rows = inconsistent_denoiser(6), completion_rows(tokens, rows=16)
    target = expected_eubo(denoiser, tokens, 1.5)
    errors = []
    for draws in (4, 64, 1024):
        measure = MonteCarloElbo(draws=draws, masking=masking, reduction="sum")  # type: ignore[arg-type]
        found = measure(denoiser, rows, measure.corrupt(rows, update=None), vocabulary=VOCABULARY).eubo
        assert found is not None
        errors.append(float((found - target).square().mean().sqrt()))
    # A Monte-Carlo error falls with the square root of the draws, fourfold from one line to the next.
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 2
    assert errors[2] < 0.1
