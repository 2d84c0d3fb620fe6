"""The dashboard's layout, read back from the event file."""

import re
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tests.training import events, tiny_module, train

from stabledrl.callbacks import Dashboard, ExplodingWeightStress, GradientSpikeMonitor, PolicyDriftMonitor
from stabledrl.callbacks.dashboard import LAYOUT


def written_layout(directory: Path) -> dict[str, dict[str, list[str]]]:
    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    (event,) = accumulator.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    return {page.title: {chart.title: list(chart.multiline.tag) for chart in page.chart} for page in layout.category}


def test_pages_and_charts_are_in_the_event_file(tmp_path: Path) -> None:
    train(tiny_module(), Dashboard(), steps=1, log_to=tmp_path)
    expected = {page: {chart: list(tags) for chart, tags in charts.items()} for page, charts in LAYOUT.items()}
    assert written_layout(tmp_path) == expected


def test_every_tag_of_the_loop_is_logged_by_a_run_with_its_monitors(tmp_path: Path) -> None:
    monitors = (Dashboard(), GradientSpikeMonitor(), PolicyDriftMonitor(), ExplodingWeightStress())
    train(tiny_module(), *monitors, steps=2, log_to=tmp_path)
    logged = events(tmp_path)
    collapse = {"train/reward_running_mean", "train/collapse_alarms", "train/rollbacks"}  # of another monitor
    tags = {tag for charts in LAYOUT["The instability loop"].values() for tag in charts} - collapse
    assert {tag for tag in tags if not any(re.fullmatch(tag, name) for name in logged)} == set()


def test_other_loggers_are_left_alone(tmp_path: Path) -> None:
    train(tiny_module(), Dashboard(), steps=1, logger=CSVLogger(tmp_path))
