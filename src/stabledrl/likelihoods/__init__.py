"""Estimates of a completion's log-likelihood."""

from stabledrl.likelihoods.elbo import MonteCarloElbo, elbo, token_elbo
from stabledrl.likelihoods.eubo import eubo
from stabledrl.likelihoods.mean_field import MeanField
from stabledrl.likelihoods.staircase import StaircaseElbo

__all__ = ["MeanField", "MonteCarloElbo", "StaircaseElbo", "elbo", "eubo", "token_elbo"]
