"""Bounds and gradients against the method's public release."""

import pytest
import torch
from tests.likelihoods.llada_golden import golden_bounds, golden_vocabulary, load_golden, load_llada

from stabledrl.backbones import Policy
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.types import LikelihoodEstimate


@pytest.fixture(scope="module")
def recorded() -> tuple[LikelihoodEstimate, Policy]:
    denoiser = load_llada()
    sequences, corruption = golden_bounds()
    return MonteCarloElbo()(denoiser, sequences, corruption, vocabulary=golden_vocabulary()), denoiser


@pytest.mark.parametrize(("surrogate", "share"), [("elbo", 0.0), ("eubo", 1.0), ("mix", 0.5)])
def test_bounds_and_their_gradients_reproduce_the_release(
    recorded: tuple[LikelihoodEstimate, Policy], surrogate: str, share: float
) -> None:
    (found, denoiser), golden = recorded, load_golden()
    assert found.eubo is not None
    torch.testing.assert_close(found.elbo, golden["bounds.elbo"], atol=1e-4, rtol=0)
    sandwich = torch.where(golden["loss.advantages"] > 0, found.elbo, share * found.eubo + (1 - share) * found.elbo)
    torch.testing.assert_close(sandwich, golden[f"bounds_{surrogate}.per_sequence"], atol=1e-4, rtol=0)
    loss = -(golden["loss.weights"] * golden["loss.advantages"] * sandwich).sum()
    assert float(loss.detach()) == pytest.approx(float(golden[f"loss_{surrogate}.loss"]), abs=1e-4)
    gradients = torch.autograd.grad(loss, list(denoiser.model.parameters()), retain_graph=True)
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    assert float(norm) == pytest.approx(float(golden[f"loss_{surrogate}.grad_norm"]), rel=1e-4)
