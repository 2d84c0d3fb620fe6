import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from stabledrl.errors import UserInputError
from stabledrl.objectives.importance import (
    check_eps,
    clamp_log_ratio,
    clip_log_ratio,
    effective_sample_size,
    group_log_sum_exp,
    ratio_metrics,
    ratio_moments,
    self_normalize,
)

NAN, INF = float("nan"), float("inf")
EXTREMES = torch.tensor([-1e30, -1000.0, -81.0, -1.0, 0.0, 1.0, 81.0, 1000.0, 1e30])


def all_graded(values: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(values), dtype=torch.bool)


def test_clamp_keeps_exp_finite_and_stops_the_gradient_beyond_80():
    log_ratio = EXTREMES.clone().requires_grad_()
    clamped = clamp_log_ratio(log_ratio)
    assert clamped.tolist() == [-80, -80, -80, -1, 0, 1, 80, 80, 80]
    assert clamped.exp().isfinite().all()
    clamped.sum().backward()
    assert log_ratio.grad.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("eps_low", "eps_high"), [(0.2, 0.2), (0.2, 5.0), (0.9, 100.0), (1e-7, 1e-7)])
def test_clip_equals_a_clamp_of_the_ratio_itself(eps_low, eps_high):
    log_ratio = torch.linspace(-8, 8, 101, dtype=torch.float64)
    expected = log_ratio.exp().clamp(1 - eps_low, 1 + eps_high)
    torch.testing.assert_close(clip_log_ratio(log_ratio, eps_low, eps_high).exp(), expected)


@pytest.mark.parametrize("eps_low", [None, 1.0, 5.0, 1e6])
def test_none_or_eps_of_at_least_one_means_no_lower_bound(eps_low):
    assert clip_log_ratio(EXTREMES, eps_low, 5.0).tolist()[:4] == [-80, -80, -80, -1]
    assert clip_log_ratio(EXTREMES, eps_low, 5.0)[-1].item() == pytest.approx(math.log(6))


@pytest.mark.parametrize("eps_high", [None, 1e40, INF])
def test_without_an_upper_bound_ratios_stay_representable(eps_high):
    assert clip_log_ratio(EXTREMES, 0.5, eps_high).tolist()[-3:] == [80, 80, 80]
    assert clip_log_ratio(EXTREMES, 0.5, eps_high)[0].item() == pytest.approx(math.log(0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_comes_out_as_float32(dtype):
    log_ratio = torch.tensor([0.5, -0.25], dtype=dtype)
    index = torch.zeros(2, dtype=torch.int64)
    for result in (clip_log_ratio(log_ratio, 0.2, 5.0), self_normalize(log_ratio, index), clamp_log_ratio(log_ratio)):
        assert result.dtype == torch.float32


@pytest.mark.parametrize("eps_low", [0.0, -0.1, NAN])
def test_widths_that_are_not_positive_are_refused(eps_low):
    with pytest.raises(UserInputError, match=rf"eps_low {eps_low} must be greater than 0"):
        check_eps(eps_low, 5.0)
    with pytest.raises(UserInputError, match=rf"eps_high {eps_low} must be greater than 0"):
        check_eps(None, eps_low)
    check_eps(None, None)


finite = st.floats(-1e6, 1e6, width=32)


@given(rows=st.lists(st.tuples(finite, st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=40), few=st.booleans())
def test_weights_are_a_distribution_over_each_group(rows, few):
    log_ratio = torch.tensor([value for value, _ in rows])
    group_index = torch.tensor([group % 3 - 1 if few else group for _, group in rows])
    weights = self_normalize(log_ratio, group_index)
    assert (weights >= 0).all()
    for group in group_index.unique():
        assert weights[group_index == group].sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("level", [-1e30, -1000.0, 0.0, 88.8, 1000.0, 1e30])
def test_equal_log_ratios_of_any_size_give_equal_weights(level):
    weights = self_normalize(torch.full((6,), level), torch.tensor([7, -3, 7, 7, 7, -3]))
    torch.testing.assert_close(weights, torch.tensor([1 / 4, 1 / 2, 1 / 4, 1 / 4, 1 / 4, 1 / 2]))


def test_one_outlier_takes_the_whole_weight_without_overflow():
    weights = self_normalize(torch.tensor([1000.0, -1000.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1]))
    assert weights.tolist() == [1.0, 0.0, 0.5, 0.5]


@given(values=st.lists(st.floats(-20, 20), min_size=2, max_size=8), shift=st.integers(-1000, 1000))
def test_a_shift_of_a_whole_group_leaves_its_weights(values, shift):
    log_ratio = torch.tensor(values, dtype=torch.float64)
    index = torch.zeros(len(values), dtype=torch.int64)
    torch.testing.assert_close(self_normalize(log_ratio + shift, index), self_normalize(log_ratio, index))


def test_weights_match_a_softmax_per_group_in_value_and_gradient():
    log_ratio = torch.randn(10, dtype=torch.float64).requires_grad_()
    index = torch.tensor([4, 4, 9, 9, 9, 4, 0, 9, 0, 4])
    weights = self_normalize(log_ratio, index)
    for group in (0, 4, 9):
        torch.testing.assert_close(weights[index == group], log_ratio[index == group].softmax(0))
    assert torch.autograd.gradcheck(lambda x: self_normalize(x, index), log_ratio)


def test_nan_log_ratios_stay_nan_in_their_group_and_reach_no_other():
    log_ratio = torch.tensor([NAN, 0.0, 1.0, 2.0])
    index = torch.tensor([0, 0, 1, 1])
    assert clamp_log_ratio(log_ratio)[0].isnan()
    assert clip_log_ratio(log_ratio, 0.2, 5.0)[0].isnan()
    assert self_normalize(log_ratio, index).isnan().tolist() == [True, True, False, False]
    assert group_log_sum_exp(log_ratio, index, 2).isnan().tolist() == [True, False]
    metrics = ratio_metrics(log_ratio, all_graded(log_ratio), index, None, 5.0)
    for name in ("log_ratio_mean", "log_ratio_std", "log_ratio_max", "effective_sample_size"):
        assert metrics[name].isnan()


def test_log_sum_exp_matches_torch_and_is_minus_infinity_for_an_empty_group():
    log_ratio = torch.tensor([1000.0, 1001.0, -1000.0, 0.3, -0.7], dtype=torch.float64).requires_grad_()
    index = torch.tensor([0, 0, 1, 3, 3])
    result = group_log_sum_exp(log_ratio, index, 4)
    expected = [log_ratio[index == group].logsumexp(0) for group in (0, 1, 3)]
    torch.testing.assert_close(result[[0, 1, 3]], torch.stack(expected))
    assert result[2].item() == -INF
    (gradient,) = torch.autograd.grad(result[[0, 1, 3]].sum(), log_ratio)
    torch.testing.assert_close(gradient, self_normalize(log_ratio, index))


def test_log_sum_exp_of_ratios_that_are_all_zero_is_minus_infinity():
    assert group_log_sum_exp(torch.full((2,), -INF), torch.tensor([0, 0]), 1).item() == -INF


def test_effective_sample_size_is_the_mean_over_groups_of_one_over_the_sum_of_squares():
    weights = torch.tensor([0.5, 0.25, 0.25, 0.9, 0.1])
    index = torch.tensor([5, 5, 5, 2, 2])
    expected = (1 / (0.25 + 0.0625 * 2) + 1 / 0.82) / 2
    result = effective_sample_size(weights.log() + 3, all_graded(weights), index)
    assert result.item() == pytest.approx(expected)


@pytest.mark.parametrize("size", [1, 4, 16])
def test_equal_ratios_have_the_group_size_and_one_outlier_has_one_effective_sample(size):
    log_ratio, index = torch.full((size,), 1000.0), torch.zeros(size, dtype=torch.int64)
    assert effective_sample_size(log_ratio, all_graded(index), index).item() == pytest.approx(size)
    log_ratio[1:] = -1000.0
    assert effective_sample_size(log_ratio, all_graded(index), index).item() == pytest.approx(1)


def test_ungraded_rows_are_no_effective_samples():
    log_ratio, index = torch.zeros(6), torch.tensor([0, 0, 0, 0, 1, 1])
    graded = torch.tensor([True, True, False, True, False, False])
    assert effective_sample_size(log_ratio, graded, index).item() == pytest.approx((3 + 0) / 2)


def test_metrics_describe_raw_ratios_and_count_what_lies_beyond_the_bounds():
    log_ratio = torch.tensor([-1000.0, -0.1, 0.0, 0.1, 1000.0]).requires_grad_()
    index = torch.zeros(5, dtype=torch.int64)
    metrics = ratio_metrics(log_ratio, all_graded(index), index, 0.2, 5.0)
    assert list(metrics) == [
        "log_ratio_mean",
        "log_ratio_std",
        "log_ratio_max",
        "ratio_mean",
        "ratio_std",
        "ratio_max",
        "ratio_kurtosis",
        "clip_fraction_low",
        "clip_fraction_high",
        "effective_sample_size",
    ]
    ratios = [0.8, math.exp(-0.1), 1.0, math.exp(0.1), 6.0]
    expected = [0.0, math.sqrt((2e6 + 0.02) / 5), 1000.0, 0.2, 0.2, sum(ratios) ** 2 / sum(r * r for r in ratios)]
    found = [value.item() for name, value in metrics.items() if not name.startswith("ratio_")]
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-4)
    assert not any(value.requires_grad or value.dim() for value in metrics.values())


def test_where_nothing_bounds_a_ratio_only_the_clamp_counts_as_clipping():
    log_ratio, index = torch.tensor([-81.0, -79.0, 79.0, 81.0]), torch.zeros(4, dtype=torch.int64)
    metrics = ratio_metrics(log_ratio, all_graded(index), index, None, None)
    assert (metrics["clip_fraction_low"].item(), metrics["clip_fraction_high"].item()) == (0.25, 0.25)


def test_metrics_exist_for_one_row_and_for_a_batch_without_a_graded_row():
    metrics = ratio_metrics(torch.tensor([0.3]), torch.tensor([False]), torch.tensor([4]), None, 5.0)
    values = [value.item() for value in metrics.values()]
    assert values == pytest.approx([0.3, 0.0, 0.3, math.exp(0.3), 0.0, math.exp(0.3), 0.0, 0.0, 0.0, 0.0])


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9))
def test_moments_are_those_of_the_ratios(log_ratios):
    ratios = [math.exp(value) for value in log_ratios]
    mean = sum(ratios) / len(ratios)
    variance = sum((ratio - mean) ** 2 for ratio in ratios) / len(ratios)
    assume(variance > 1e-12 * mean**2)
    fourth = sum((ratio - mean) ** 4 for ratio in ratios) / len(ratios)
    found = ratio_moments(torch.tensor(log_ratios, dtype=torch.float64))
    expected = {
        "ratio_mean": mean,
        "ratio_std": math.sqrt(variance),
        "ratio_max": max(ratios),
        "ratio_kurtosis": fourth / variance**2,
    }
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, rel=1e-6)


def test_moments_of_the_largest_ratios_are_finite():
    found = ratio_moments(torch.tensor([1e6, -1e6, 0.0, 80.0]))
    assert all(value.isfinite() for value in found.values())
    assert found["ratio_max"].item() == pytest.approx(math.exp(80), rel=1e-9)
