"""Interval, pass@k and majority vote against published values and against trying every choice of samples."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.scores import majority_at_k, pass_at_k, wilson_interval


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_interval_has_the_published_values(correct: int, total: int, low: float, high: float) -> None:
    found = wilson_interval(correct, total)
    assert found == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))
    mirrored = wilson_interval(total - correct, total)
    assert mirrored == (pytest.approx(1 - high, abs=5e-5), pytest.approx(1 - low, abs=5e-5))


@given(st.integers(1, 500), st.data())
def test_wilson_ends_are_the_proportions_that_lie_z_standard_errors_off(total: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, total))
    low, high = wilson_interval(correct, total)
    share = correct / total
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        if 0 < end < 1:
            assert abs(share - end) / math.sqrt(end * (1 - end) / total) == pytest.approx(1.959964, abs=1e-4)


def test_a_wider_confidence_gives_a_wider_interval() -> None:
    low, high = wilson_interval(3, 10, 0.99)
    assert low < wilson_interval(3, 10)[0]
    assert high > wilson_interval(3, 10)[1]


def choices(count: int, k: int) -> list[tuple[int, ...]]:
    return list(itertools.combinations(range(count), k))


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_mean_over_all_choices(correct: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(correct)))
    found = [any(correct[index] for index in chosen) for chosen in choices(len(correct), k)]
    assert pass_at_k(correct, k) == pytest.approx(sum(found) / len(found))


def test_pass_at_k_stays_exact_where_the_binomials_overflow_floats() -> None:
    assert pass_at_k([True] + [False] * 1999, 1000) == pytest.approx(0.5)


def vote(answers: Sequence[str | None], right: Sequence[bool]) -> float:
    """The rule, spelled out: the mean verdict of the most frequent answers."""
    counts = Counter(answer for answer in answers if answer is not None)
    winners = [answer for answer, count in counts.items() if count == max(counts.values())]
    return sum(right[answers.index(winner)] for winner in winners) / len(winners) if winners else 0.0


@given(st.lists(st.sampled_from(["a", "b", "c", "d", None]), min_size=1, max_size=8), st.data())
def test_majority_at_k_is_the_mean_over_all_choices(answers: list[str | None], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answers)))
    good = data.draw(st.sets(st.sampled_from("abcd")))
    correct = [answer in good for answer in answers]
    found = [
        vote([answers[index] for index in chosen], [correct[index] for index in chosen])
        for chosen in choices(len(answers), k)
    ]
    assert majority_at_k(answers, correct, k) == pytest.approx(sum(found) / len(found))


@pytest.mark.parametrize(
    ("answers", "k", "expected"),
    [
        (["a", "a", "b"], 3, 1.0),
        (["a", "b", "b"], 3, 0.0),
        (["a", "b"], 2, 1 / 2),
        (["a", "b", "c"], 3, 1 / 3),
        (["a", None, None], 3, 1.0),
        ([None, None], 2, 0.0),
        (["a", "b", None], 2, (1 / 2 + 1 + 0) / 3),
    ],
)
def test_ties_are_shared_and_silence_has_no_vote(answers: list[str | None], k: int, expected: float) -> None:
    correct = [answer == "a" for answer in answers]
    assert majority_at_k(answers, correct, k) == pytest.approx(expected)


def test_an_answer_with_different_verdicts_counts_by_the_share_that_is_right() -> None:
    assert majority_at_k(["a", "a", "a", "b"], [True, False, True, False], 4) == pytest.approx(2 / 3)


def test_the_order_of_the_samples_does_not_matter() -> None:
    answers = ["a", "b", "c", "a", None, "b"]
    found = {
        round(majority_at_k(order, [answer == "a" for answer in order], 3), 12)
        for order in itertools.permutations(answers)
    }
    assert len(found) == 1


def test_a_vote_of_many_samples_is_found_without_trying_all_choices() -> None:
    answers = [str(number % 20) for number in range(64)]
    correct = [answer == "1" for answer in answers]
    assert majority_at_k(answers, correct, 1) == pytest.approx(pass_at_k(correct, 1))
    assert majority_at_k(answers, correct, 64) == pytest.approx(1 / 4)
