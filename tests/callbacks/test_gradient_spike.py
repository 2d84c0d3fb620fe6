"""GradientSpikeMonitor: finds spikes, keeps broken gradients out of the weights, and says so."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import Digits, Once, Recorder, all_equal, events, same, scale_gradient, tiny_module, train, weights

from stabledrl.callbacks import GradientSpikeMonitor, RunCheckpoint, TrainingStoppedError
from stabledrl.errors import UserInputError

INFINITE = float("inf")


def spiky(monitor: GradientSpikeMonitor, *at: int, factor: float = 1e4, steps: int = 8, **options: Any) -> Recorder:
    """Multiplies the gradient at the given steps, before the monitor looks."""
    recorder = Recorder()
    train(
        options.pop("module", None) or tiny_module(),
        Once(scale_gradient(factor), *at),
        monitor,
        recorder,
        steps=steps,
        **options,
    )
    return recorder


def test_steady_gradients_are_no_spikes() -> None:
    monitor = GradientSpikeMonitor()
    spiky(monitor)
    assert (monitor.spikes, monitor.nonfinite_updates, monitor.skipped_updates) == (0, 0, 0)


def test_a_spike_is_counted_told_and_left_out_of_the_median(caplog: pytest.LogCaptureFixture) -> None:
    monitor, plain = GradientSpikeMonitor(), GradientSpikeMonitor()
    spiky(plain, steps=6)
    with caplog.at_level(logging.WARNING, logger="stabledrl"):
        recorder = spiky(monitor, 6, steps=7)
    assert (monitor.spikes, monitor.skipped_updates) == (1, 0)
    assert monitor.running_median == plain.running_median
    told = [record.message for record in caplog.records if record.name == "stabledrl"]
    assert len(told) == 1
    assert told[0].startswith("step 6: gradient norm")
    assert told[0].endswith("update made")
    assert recorder.metrics[-1]["train/spikes"] == 1


def test_no_spike_is_called_without_a_history() -> None:
    monitor = GradientSpikeMonitor(min_history=5)
    spiky(monitor, 4, steps=5)
    assert monitor.spikes == 0


def test_the_median_is_over_the_last_window_of_healthy_norms() -> None:
    monitor, recorder = GradientSpikeMonitor(window=3, min_history=3, factor=1e9), Recorder()
    train(tiny_module(), monitor, recorder, steps=7)
    norms = [metrics["train/grad_norm"] for metrics in recorder.metrics]
    assert monitor.running_median == pytest.approx(sorted(norms[-3:])[1], rel=1e-6)


def test_flat_rollouts_do_not_enter_the_median() -> None:
    monitor = GradientSpikeMonitor(min_history=1)
    train(tiny_module(), monitor, steps=3, tasks=[Digits(all_equal)])
    assert monitor.running_median is None


def test_a_skipped_spike_leaves_the_weights_bitwise_alone() -> None:
    module = tiny_module()
    recorder = spiky(GradientSpikeMonitor(skip=True), 6, steps=8, module=module)
    assert same(recorder.weights[6], recorder.weights[7])
    assert not same(recorder.weights[5], recorder.weights[6])
    assert not same(recorder.weights[7], weights(module))
    assert recorder.metrics[6]["train/skipped_updates"] == 1


@pytest.mark.parametrize("factor", [INFINITE, -INFINITE, float("nan")])
def test_a_gradient_that_is_not_finite_is_skipped_and_counted(factor: float) -> None:
    monitor, module = GradientSpikeMonitor(), tiny_module()
    recorder = spiky(monitor, 1, factor=factor, steps=3, module=module)
    assert same(recorder.weights[1], recorder.weights[2])
    assert not same(recorder.weights[2], weights(module))
    assert (monitor.nonfinite_updates, monitor.skipped_updates, monitor.spikes) == (1, 1, 0)
    assert recorder.metrics[-1]["train/nonfinite_updates"] == 1


@pytest.mark.parametrize("clip", [None, 1.0])
def test_without_the_monitor_a_gradient_that_is_not_finite_is_an_error(clip: float | None) -> None:
    with pytest.raises(FloatingPointError, match="GradientSpikeMonitor"):
        train(tiny_module(), Once(scale_gradient(INFINITE), 1), steps=3, gradient_clip_val=clip)


def test_nonfinite_gradients_in_a_row_stop_the_run() -> None:
    monitor = GradientSpikeMonitor(stop_after_nonfinite=3)
    with pytest.raises(TrainingStoppedError, match="3 non-finite gradients in a row"):
        spiky(monitor, 0, 2, 3, 4, factor=INFINITE)
    assert monitor.nonfinite_updates == 4


def test_spikes_in_a_row_stop_the_run() -> None:
    monitor = GradientSpikeMonitor(stop_after=2, skip=True)
    with pytest.raises(TrainingStoppedError, match="2 spikes in a row"):
        spiky(monitor, 5, 7, 8, steps=12)
    assert monitor.spikes == 3


def test_norms_before_and_after_clipping_are_logged(tmp_path: Path) -> None:
    recorder = Recorder()
    train(tiny_module(), GradientSpikeMonitor(), recorder, steps=3, gradient_clip_val=1e-3, log_to=tmp_path)
    found = events(tmp_path)
    for step, gradients in enumerate(recorder.gradients):
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
        assert found["train/grad_norm"][step] == [pytest.approx(norm, rel=1e-5)]
        assert norm > 1e-3 >= found["train/grad_norm_clipped"][step][0] * (1 - 1e-5)
        assert found["train/grad_norm_clipped"][step][0] == pytest.approx(1e-3, rel=1e-2)


def test_without_clipping_both_norms_agree() -> None:
    recorder = Recorder()
    train(tiny_module(), GradientSpikeMonitor(), recorder, steps=1, gradient_clip_val=None)
    assert recorder.metrics[0]["train/grad_norm"] == recorder.metrics[0]["train/grad_norm_clipped"] > 0


def test_state_survives_a_resume(tmp_path: Path) -> None:
    def part(directory: str, steps: int, resume: str | None = None) -> dict[str, Any]:
        monitor = GradientSpikeMonitor(skip=True, min_history=3)
        checkpoint = RunCheckpoint(dirpath=str(tmp_path / directory))
        path = None if resume is None else tmp_path / resume / "last.ckpt"
        spiky_run = Once(scale_gradient(1e4), 4, 9)
        train(
            tiny_module(),
            Once(scale_gradient(INFINITE), 5),
            spiky_run,
            monitor,
            checkpoint,
            steps=steps,
            ckpt_path=path,
        )
        return monitor.state_dict()

    whole = part("whole", 10)
    part("a", 6)
    assert part("b", 10, "a") == whole
    assert (whole["spikes"], whole["nonfinite_updates"], whole["skipped_updates"]) == (2, 1, 3)


@pytest.mark.parametrize(("factor", "options"), [(INFINITE, {"stop_after_nonfinite": 3}), (1e4, {"stop_after": 3})])
def test_a_row_goes_on_over_a_resume(tmp_path: Path, factor: float, options: dict[str, Any]) -> None:
    checkpoint = RunCheckpoint(dirpath=str(tmp_path))
    spiky_step = Once(scale_gradient(factor), 6, 7, 8)
    train(tiny_module(), spiky_step, GradientSpikeMonitor(skip=True, **options), checkpoint, steps=8)
    monitor = GradientSpikeMonitor(skip=True, **options)
    with pytest.raises(TrainingStoppedError, match=r"3 .* in a row"):
        train(tiny_module(), spiky_step, monitor, steps=9, ckpt_path=tmp_path / "last.ckpt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factor": 1.0}, "factor 1.0 must be a finite number above 1"),
        ({"factor": float("nan")}, "factor nan"),
        ({"factor": INFINITE}, "factor inf"),
        ({"min_history": 0}, "min_history 0 must lie between 1 and window 50"),
        ({"window": 3}, "min_history 5 must lie between 1 and window 3"),
        ({"stop_after": 0}, "stop_after 0 must be at least 1"),
        ({"stop_after_nonfinite": 0}, "stop_after_nonfinite 0 must be at least 1"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        GradientSpikeMonitor(**options)
