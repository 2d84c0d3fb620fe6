"""What the ELBO estimates, against enumeration of all masks, decoding orders and completions."""

import pytest
import torch
from tests.diffusion.laws import coefficients_of, law_of
from tests.likelihoods.joint import (
    COMPLETIONS,
    LAWS,
    TOKENS,
    VOCABULARY,
    TableDenoiser,
    completion_rows,
    estimate,
    estimator,
    exact_denoiser,
    expected_elbo,
    expected_value,
    inconsistent_denoiser,
    order_log_probs,
    random_joint,
    whole_law,
)

from stabledrl.types import Corruption

every_law = pytest.mark.parametrize("masking", LAWS)


@pytest.mark.parametrize("tokens", COMPLETIONS)
def test_elbo_over_all_uniform_masks_is_log_p_for_conditionals_of_a_joint(tokens: list[int]) -> None:
    joint = random_joint(len(tokens))
    rows = completion_rows(tokens)
    found = estimator()(exact_denoiser(joint), rows, whole_law(rows), vocabulary=VOCABULARY)
    assert float(found.elbo) == pytest.approx(float(joint[tuple(tokens)].log()), abs=2e-5)


@pytest.mark.parametrize("tokens", COMPLETIONS)
def test_elbo_over_all_uniform_masks_is_the_mean_over_decoding_orders_and_bounds_their_mixture(
    tokens: list[int],
) -> None:
    denoiser, rows = inconsistent_denoiser(len(tokens)), completion_rows(tokens)
    found = float(estimator()(denoiser, rows, whole_law(rows), vocabulary=VOCABULARY).elbo)
    orders = order_log_probs(denoiser, tokens)
    assert found == pytest.approx(float(orders.mean()), abs=2e-5)
    # Decoding in a random order is a true distribution: the average of one joint per order.
    mixture = float(orders.logsumexp(dim=0) - torch.tensor(len(orders)).log())
    assert found < mixture - 0.01


@pytest.mark.parametrize("tokens", COMPLETIONS[2:])
@every_law
def test_unbiased_says_whether_the_laws_expectation_is_the_elbo(masking: str, tokens: list[int]) -> None:
    measure = estimator(masking=masking)
    for denoiser in (inconsistent_denoiser(6), exact_denoiser(random_joint(6))):
        target = expected_elbo(denoiser, tokens, law_of("uniform", 6))
        gap = abs(expected_value(denoiser, tokens, coefficients_of(masking, 6, measure.draws)) - target)
        assert gap < 1e-12 if measure.unbiased else gap > 0.005


@pytest.mark.parametrize("tokens", COMPLETIONS[1:3])
@every_law
def test_estimates_average_to_the_expectation_of_their_law(masking: str, tokens: list[int]) -> None:
    denoiser, rows = inconsistent_denoiser(len(tokens)), completion_rows(tokens, rows=40_000)
    measure = estimator(masking=masking)
    found = estimate(measure, denoiser, rows).elbo.double()
    bound = 4 * float(found.std()) / len(found) ** 0.5
    assert bound < 0.08
    expected = expected_value(denoiser, tokens, coefficients_of(masking, len(tokens), measure.draws))
    assert abs(float(found.mean()) - expected) < bound


@pytest.mark.parametrize("length", range(1, 7))
@pytest.mark.parametrize("points", [1, 2, 3])
def test_quadrature_is_the_elbo_up_to_twice_as_many_tokens_as_points(points: int, length: int) -> None:
    denoiser, tokens = inconsistent_denoiser(length), [0, 2, 1, 1, 0, 2][:length]
    target = expected_elbo(denoiser, tokens, law_of("uniform", length))
    gap = abs(expected_value(denoiser, tokens, coefficients_of("quadrature", length, points)) - target)
    assert gap < 1e-12 if length <= 2 * points else gap > 1e-3


def test_each_draw_of_an_antithetic_pair_is_unbiased_on_its_own() -> None:
    denoiser, tokens = inconsistent_denoiser(6), COMPLETIONS[2]
    rows, measure = completion_rows(tokens, rows=40_000), estimator(masking="antithetic", draws=4)
    corruption = measure.corrupt(rows, update=None)
    target = expected_elbo(denoiser, tokens, law_of("uniform", 6))
    for draw in range(4):
        one = Corruption(masked=corruption.masked[:, draw : draw + 1], weight=corruption.weight[:, draw : draw + 1])
        found = measure(denoiser, rows, one, vocabulary=VOCABULARY).elbo.double()
        assert abs(float(found.mean()) - target) < 4 * float(found.std()) / len(found) ** 0.5 < 0.12


@pytest.mark.parametrize(("draws", "share"), [(2, 0.9), (6, 0.75)])
def test_stratified_draws_vary_less_than_uniform_ones(draws: int, share: float) -> None:
    denoiser, rows = exact_denoiser(random_joint(3)), completion_rows(COMPLETIONS[1], rows=40_000)
    stratified, uniform = (
        estimate(estimator(masking=masking, draws=draws), denoiser, rows).elbo.var()
        for masking in ("stratified", "uniform")
    )
    assert stratified < share * uniform


def test_as_many_stratified_draws_as_tokens_leave_no_variance_from_the_number_of_masked_tokens() -> None:
    table = torch.zeros((TOKENS + 1) ** 6, 6, TOKENS)
    for code in range(len(table)):
        table[code, :, 0] = -sum(code // (TOKENS + 1) ** place % (TOKENS + 1) == TOKENS for place in range(6))
    denoiser, rows = TableDenoiser(table), completion_rows([0] * 6, rows=500)
    found = {
        masking: estimate(estimator(masking=masking, draws=6), denoiser, rows).elbo
        for masking in ("stratified", "uniform")
    }
    target = expected_elbo(denoiser, [0] * 6, law_of("uniform", 6))
    torch.testing.assert_close(found["stratified"], torch.full((500,), target))
    assert found["uniform"].std() > 0.5
