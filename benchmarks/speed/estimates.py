"""E1, S1, S2: log-likelihood estimates, forward and backward."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.speed import plain
from benchmarks.speed.comparison import Comparison
from benchmarks.speed.models import make_policy, make_sequences
from stabledrl.backbones import Policy
from stabledrl.diffusion.staircase import staircase_mask
from stabledrl.likelihoods import MonteCarloElbo, StaircaseElbo
from stabledrl.protocols import LikelihoodEstimator
from stabledrl.types import Corruption, Sequences

Bound = Callable[[], Tensor]
"""Computes the (N,) bounds of a group's completions, with gradient."""


def _with_gradients(policy: Policy, bound: Bound) -> list[Tensor]:
    """The bounds, and the gradient of a weighted sum of them in every weight."""
    policy.zero_grad()
    found = bound()
    (found * torch.linspace(-1, 1, len(found) + 1)[1:]).sum().backward()
    gradients = [weight.grad for weight in policy.parameters()]
    policy.zero_grad()
    return [found.detach(), *(gradient for gradient in gradients if gradient is not None)]


def _check(policy: Policy, ours: Bound, baseline: Bound) -> None:
    own, other = _with_gradients(policy, ours), _with_gradients(policy, baseline)
    assert len(own) == len(other) == 1 + len(list(policy.parameters()))
    for found, expected in zip(own, other):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def _comparison(name: str, case: str, policy: Policy, ours: Bound, baseline: Bound, **bounds: float) -> Comparison:
    return Comparison(
        id=name,
        case=case,
        ours=partial(_with_gradients, policy, ours),
        baseline=partial(_with_gradients, policy, baseline),
        check=partial(_check, policy, ours, baseline),
        **bounds,  # type: ignore[arg-type]
    )


def _ours(policy: Policy, measure: LikelihoodEstimator, rows: Sequences, corruption: Corruption) -> Tensor:
    return measure(policy, rows, corruption, vocabulary=policy.vocabulary).elbo


def e1(
    *, rows: int = 1, prompt: int = 144, completion: int = 256, draws: int = 2, vocabulary_size: int = 126464
) -> list[Comparison]:
    """The ELBO from masked tokens, part of the vocabulary after part, against all logits of the whole sequences.

    The model is small beside its vocabulary, so that logits are what takes memory. By the way, also against whole
    logits of the masked tokens: what the parts alone save, and what their second computation costs.
    """
    policy = make_policy(hidden_size=32, layers=2, vocabulary_size=vocabulary_size)
    sequences = make_sequences(policy, rows, prompt, completion)
    settings = {"draws": draws, "masking": "uniform", "eubo_beta": None}
    measure, whole = MonteCarloElbo(**settings), MonteCarloElbo(**settings, keep_logits=True)  # type: ignore[arg-type]
    corruption = measure.corrupt(sequences, update=0)

    def full_logits() -> Tensor:
        log_probs = plain.token_log_probs(policy, sequences, corruption, policy.vocabulary)
        return plain.elbo(log_probs, corruption, sequences)

    ours = partial(_ours, policy, measure, sequences, corruption)
    masked_only = partial(_ours, policy, whole, sequences, corruption)
    make = partial(_comparison, "E1", policy=policy, ours=ours)
    return [
        make(case="peak memory, all logits", baseline=full_logits, gate=8.0, goal=25.0, memory=True),
        make(case="time, all logits", baseline=full_logits, gate=1.0, goal=3.0),
        make(case="peak memory, logits of masked tokens", baseline=masked_only, memory=True),
        make(case="time, logits of masked tokens", baseline=masked_only),
    ]


def token_ratio(prompt: int, completion: int, blocks: int, draws: int) -> float:
    """Tokens of a loop over draws and blocks over those of one pass with a clean stream that all draws share."""
    return draws * (blocks * prompt + completion * (blocks + 1) / 2) / (prompt + completion + draws * completion)


def s1(
    *, rows: int = 1, prompt: int = 64, completion: int = 128, draws: int = 2, hidden: int = 256
) -> list[Comparison]:
    """The staircase pass against a pass per draw and block; both compute the head where it is needed.

    Gate and goal are shares of the ratio of tokens. The model is wide for its length, so that attention, which grows
    with the square of a pass's length, is as small a part of the work as in a large model.
    """
    found = []
    for blocks in (8, 32):
        block_size = completion // blocks
        policy = make_policy(hidden_size=hidden, layers=2, block_size=block_size)
        sequences = make_sequences(policy, rows, prompt, completion)
        measure = StaircaseElbo(block_size=block_size, draws=draws, eubo_beta=None)
        corruption = measure.corrupt(sequences, update=0)
        baseline = partial(_block_loop, policy, sequences, corruption, block_size)
        tokens = token_ratio(prompt, completion, blocks, draws)
        case = f"{blocks} blocks, {draws} draws, token ratio {tokens:.1f}"
        ours = partial(_ours, policy, measure, sequences, corruption)
        found.append(_comparison("S1", case, policy, ours, baseline, gate=0.6 * tokens, goal=0.85 * tokens))
    return found


def _block_loop(policy: Policy, sequences: Sequences, corruption: Corruption, block_size: int) -> Tensor:
    found = plain.block_loop_log_probs(policy, sequences, corruption, policy.vocabulary, block_size)
    return plain.elbo(found, corruption, sequences)


def s2(
    *, rows: int = 2, prompt: int = 64, completion: int = 128, block_size: int = 16, hidden: int = 256
) -> list[Comparison]:
    """One clean stream for two draws, against a doubled sequence for each draw: all clean tokens, all noised ones."""
    policy = make_policy(hidden_size=hidden, layers=2, block_size=block_size)
    sequences = make_sequences(policy, rows, prompt, completion)
    measure = StaircaseElbo(block_size=block_size, draws=2, eubo_beta=None)
    corruption = measure.corrupt(sequences, update=0)
    ours = partial(_ours, policy, measure, sequences, corruption)
    baseline = partial(_doubled, policy, sequences, corruption, block_size)
    return [_comparison("S2", "2 draws", policy, ours, baseline, gate=1.3, goal=1.6)]


def _doubled(policy: Policy, sequences: Sequences, corruption: Corruption, block_size: int) -> Tensor:
    (rows, draws, length), scored = corruption.masked.shape, corruption.scored(sequences)
    shown = sequences.token_ids[:, None].masked_fill(corruption.masked, policy.vocabulary.mask_token_id)
    clean = sequences.token_ids[:, None].expand(-1, draws, -1)
    both, place = torch.cat([clean, shown], dim=2).flatten(0, 1), torch.arange(length).repeat(2)
    stream = torch.arange(2).repeat_interleave(length)
    keep = torch.cat([torch.zeros(rows, draws, 2 * length - scored.shape[2], dtype=torch.bool), scored], dim=2)
    targets = sequences.completion_ids[:, None].expand_as(scored)[scored]
    log_probs = policy(
        both,
        staircase_mask(place // block_size, stream, torch.ones_like(both, dtype=torch.bool)),
        keep=keep.flatten(0, 1),
        targets=targets,
        position_ids=place.expand_as(both),
    )
    spread = log_probs.new_zeros(scored.shape).masked_scatter(scored, log_probs)
    return plain.elbo(spread, corruption, sequences)
