"""The speed benchmarks: both ways agree, in small; measuring is right; and, slowly, the gates hold."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from benchmarks import __main__ as command
from benchmarks.speed import comparison, plain
from benchmarks.speed.comparison import Comparison, Result, measure, missed, table
from benchmarks.speed.memory import peak_bytes
from benchmarks.speed.models import HEAD_SHARE, make_policy, make_sequences
from benchmarks.speed.registry import BENCHMARKS, SMALL
from tests.likelihoods.block_rows import looped_elbo

from stabledrl.likelihoods import StaircaseElbo

MEGABYTE = 2**20


@pytest.mark.parametrize("name", BENCHMARKS)
def test_ours_and_the_plain_way_agree(name: str) -> None:
    comparisons = BENCHMARKS[name](**SMALL[name])
    assert all(one.id == name for one in comparisons)
    for one in comparisons:
        one.check()
        one.ours()
        one.baseline()


@pytest.mark.parametrize("name", ["R1", "R3", "R4", "R5", "R6", "E1", "S1", "S2", "U1"])
def test_checks_notice_when_ours_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: dict[str, tuple[str, Callable[..., Any]]] = {
        "R1": ("stabledrl.samplers.semi_autoregressive.sample_tokens", _one_token_off("categorical")),
        "R3": ("benchmarks.speed.sampling.sample_tokens", _one_token_off("categorical")),
        "R4": ("benchmarks.speed.sampling.transfer", lambda confidence, masked, count: confidence > 0.5),
        "R5": ("stabledrl.samplers.block_diffusion.sample_tokens", _one_token_off("categorical")),
        "R6": ("benchmarks.speed.rollouts.make_keys", lambda rows: _Shifting(torch.arange(rows))),
        "E1": ("benchmarks.speed.plain.elbo", lambda log_probs, corruption, sequences: log_probs.sum(dim=(1, 2))),
        "S1": ("benchmarks.speed.plain.elbo", lambda log_probs, corruption, sequences: log_probs.sum(dim=(1, 2))),
        "S2": ("benchmarks.speed.plain.elbo", lambda log_probs, corruption, sequences: log_probs.sum(dim=(1, 2))),
        "U1": ("benchmarks.speed.plain.elbo", lambda log_probs, corruption, sequences: log_probs.sum(dim=(1, 2))),
    }
    monkeypatch.setattr(*broken[name])
    with pytest.raises(AssertionError):
        for one in BENCHMARKS[name](**SMALL[name]):
            one.check()
