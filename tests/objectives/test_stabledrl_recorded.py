"""Numbers recorded from the method's public release: one prompt, six completions, ratios bounded by 5 from above."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.objectives.batches import estimate, rollouts

from stabledrl.objectives import StableDRL

CASES = Path(__file__).parents[1] / "cases" / "llada_training" / "cases.safetensors"


@pytest.mark.parametrize(("omega", "name"), [(0.0, "elbo"), (1.0, "eubo"), (0.5, "mix")])
def test_the_public_releases_preset_reproduces_its_recorded_weights_and_losses(omega, name):
    recorded = load_file(CASES)
    old, log_ratio = recorded["loss.old_elbo"], recorded["loss.log_ratio"]
    assert (log_ratio > torch.tensor(5.0).log()).any()  # or the upper bound would not be tested
    index = torch.zeros(6, dtype=torch.int64)
    batch = rollouts(old, recorded["loss.advantages"], index)
    current = estimate(recorded["bounds.elbo"], recorded["bounds_eubo.per_sequence"])
    objective = StableDRL(eps_low=None, eps_high=4.0, omega=omega)
    torch.testing.assert_close(objective.weights(log_ratio, batch), recorded["loss.weights"], rtol=0, atol=1e-5)
    torch.testing.assert_close(current.elbo - old, log_ratio, rtol=0, atol=1e-5)
    loss = objective(current, batch).loss
    torch.testing.assert_close(loss, recorded[f"loss_{name}.loss"][0], rtol=0, atol=1e-5)
    by_weights = -(recorded["loss.weights"] * batch.advantages * recorded[f"bounds_{name}.per_sequence"]).sum()
    torch.testing.assert_close(loss, by_weights, rtol=0, atol=1e-5)
