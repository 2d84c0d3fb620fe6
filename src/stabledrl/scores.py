"""How sure an accuracy is, and what several samples per prompt say: interval, pass@k and majority vote."""

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import torch
from torch import Tensor


def wilson_interval(correct: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion (Wilson, JASA 1927): also sensible near 0 and 1 and for few trials.

    Args:
        correct: Successes.
        total: Trials, at least 1.
        confidence: Share of such intervals that hold the true proportion.

    Returns:
        Lower and upper end, within [0, 1].
    """
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    share = correct / total
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = math.sqrt(z2 * (share * (1 - share) / total + z2 / (4 * total**2))) / (1 + z2 / total)
    # Exactly 0 and 1 where nothing, or everything, is correct; rounding would leave a sliver.
    return 0.0 if correct == 0 else centre - half, 1.0 if correct == total else centre + half


def pass_at_k(correct: Sequence[bool], k: int) -> float:
    """Chance that at least one of k samples is right: 1 - C(n-c, k) / C(n, k) (Chen et al., arXiv 2107.03374, eq. 1).

    Args:
        correct: The n samples' verdicts.
        k: From 1 to n.

    Returns:
        The unbiased estimate: the mean over all choices of k of the n samples.
    """
    n, right = len(correct), sum(correct)
    return 1 - math.comb(n - right, k) / math.comb(n, k)


def majority_at_k(answers: Sequence[str | None], correct: Sequence[bool], k: int) -> float:
    """Chance that the most frequent answer of k samples is right: the mean over all choices of k of the n samples.

    A tie is shared: each of the most frequent answers is taken equally often. A sample without answer has no vote; a
    choice without any vote is wrong.

    Args:
        answers: The n parsed answers.
        correct: Their verdicts. Should equal answers have different ones, the answer counts by the share that is right.
        k: From 1 to n.

    Returns:
        The expected verdict of the vote, in [0, 1].
    """
    votes: dict[str, list[bool]] = {}
    for answer, verdict in zip(answers, correct):
        if answer is not None:
            votes.setdefault(answer, []).append(verdict)
    silent = sum(answer is None for answer in answers)
    chance = 0.0
    for answer, verdicts in votes.items():
        others = [len(own) for other, own in votes.items() if other != answer]
        if share := sum(verdicts) / len(verdicts):
            chance += share * sum(_wins(len(verdicts), others, silent, k))
    return chance / math.comb(len(answers), k)


def _wins(own: int, others: Sequence[int], silent: int, k: int) -> Iterator[float]:
    """For each number of votes, the choices of k samples in which an answer wins with it; a tie of m counts 1 / m.

    Args:
        own: Samples with the answer.
        others: Samples with each other answer.
        silent: Samples without.
        k: Samples chosen.
    """
    for votes in range(1, min(own, k) + 1):
        rest = k - votes
        # ways[t, s]: choices of s samples among those seen so far in which t other answers have as many votes.
        ways = torch.zeros(rest // votes + 1, rest + 1, dtype=torch.float64)
        for chosen in range(min(silent, rest) + 1):
            ways[0, chosen] = math.comb(silent, chosen)
        for other in others:
            ways = _choose(ways, other, votes)
        shares = 1 / torch.arange(1, len(ways) + 1, dtype=torch.float64)
        yield math.comb(own, votes) * float(ways[:, rest] @ shares)


def _choose(ways: Tensor, other: int, votes: int) -> Tensor:
    """Lets 0 to `votes` of an answer's `other` samples be among the chosen ones."""
    ties, rest = ways.shape[0] - 1, ways.shape[1] - 1
    extended = ways.clone()
    for chosen in range(1, min(other, votes - 1, rest) + 1):
        extended[:, chosen:] += math.comb(other, chosen) * ways[:, : rest + 1 - chosen]
    if other >= votes and ties:
        extended[1:, votes:] += math.comb(other, votes) * ways[:-1, : rest + 1 - votes]
    return extended
