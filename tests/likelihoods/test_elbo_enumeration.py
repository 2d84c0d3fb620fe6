"""What the ELBO estimates, against enumeration of all masks, decoding orders and completions."""

import pytest
import torch
from tests.diffusion.laws import law_of
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
    inconsistent_denoiser,
    order_log_probs,
    random_joint,
    whole_law,
)

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
    for denoiser in (inconsistent_denoiser(6), exact_denoiser(random_joint(6))):
        target = expected_elbo(denoiser, tokens, law_of("uniform", 6))
        gap = abs(expected_elbo(denoiser, tokens, law_of(masking, 6)) - target)
        assert gap < 1e-12 if estimator(masking=masking).unbiased else gap > 0.05


@pytest.mark.parametrize("tokens", COMPLETIONS[1:3])
@every_law
def test_estimates_average_to_the_expectation_of_their_law(masking: str, tokens: list[int]) -> None:
    denoiser, rows = inconsistent_denoiser(len(tokens)), completion_rows(tokens, rows=40_000)
    found = estimate(estimator(masking=masking), denoiser, rows).elbo.double()
    bound = 4 * float(found.std()) / len(found) ** 0.5
    assert bound < 0.06
    mean = float(found.mean())
    assert abs(mean - expected_elbo(denoiser, tokens, law_of(masking, len(tokens)))) < bound
    if len(tokens) == 6:
        gap = abs(mean - expected_elbo(denoiser, tokens, law_of("uniform", 6)))
        assert gap < bound if estimator(masking=masking).unbiased else gap > 2 * bound


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
