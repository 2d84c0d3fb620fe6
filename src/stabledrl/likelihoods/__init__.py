"""Estimates of a completion's log-likelihood."""

from stabledrl.likelihoods.elbo import MonteCarloElbo, elbo
from stabledrl.likelihoods.eubo import eubo

__all__ = ["MonteCarloElbo", "elbo", "eubo"]
