"""The whole chain on a published layout against the method's public release: load, score, weigh, differentiate."""

from dataclasses import replace

import pytest
import torch
from tests.likelihoods.llada_golden import golden_bounds, golden_vocabulary, load_golden, load_llada

from stabledrl.gradients import gradient_norm
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.objectives import StableDRL
from stabledrl.types import RolloutBatch, UpdateTotals


@pytest.mark.parametrize(("surrogate", "omega"), [("elbo", 0.0), ("eubo", 1.0), ("mix", 0.5)])
def test_loss_weights_and_gradient_norm_are_those_of_the_release(surrogate: str, omega: float) -> None:
    golden, policy = load_golden(), load_llada()
    sequences, corruption = golden_bounds()
    current = MonteCarloElbo()(policy, sequences, corruption, vocabulary=golden_vocabulary())
    rows = len(sequences.row_keys)
    rollouts = RolloutBatch(
        sequences=sequences,
        group_index=torch.zeros(rows, dtype=torch.int64),
        rewards=golden["loss.advantages"],
        graded=torch.ones(rows, dtype=torch.bool),
        advantages=golden["loss.advantages"],
        old=replace(current, elbo=golden["loss.old_elbo"]).detach(),
        totals=UpdateTotals(rows=rows, groups=1, tokens=int(sequences.lengths.sum())),
    )
    objective = StableDRL(eps_low=None, eps_high=4.0, omega=omega)  # The release bounds the ratio by 5 from above.
    log_ratio = current.elbo - rollouts.old.elbo
    torch.testing.assert_close(log_ratio, golden["loss.log_ratio"], atol=1e-4, rtol=0)
    torch.testing.assert_close(objective.weights(log_ratio, rollouts), golden["loss.weights"], atol=1e-5, rtol=0)
    loss = objective(current, rollouts).loss
    assert loss.item() == pytest.approx(golden[f"loss_{surrogate}.loss"].item(), abs=1e-4)
    loss.backward()
    assert gradient_norm(policy).item() == pytest.approx(golden[f"loss_{surrogate}.grad_norm"].item(), rel=1e-3)
