"""The benchmark of growth, in small."""

import json
from pathlib import Path

import pytest
from benchmarks.growth import MEASURED, SWEEPS, Point, exponents, figure, main, measure

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "growth.jsonl"


def test_exponents_are_those_of_a_power_law(tmp_path: Path) -> None:
    points = [
        Point(
            sweep="group_size",
            value=size,
            rollout_seconds=0.1 * size,
            update_seconds=0.2 * size**2,
            rollout_bytes=1000 * size,
            update_bytes=5000,
        )
        for size in SWEEPS["group_size"]
    ]
    found = exponents(points)["group_size"]
    assert list(found.values()) == pytest.approx([1, 2, 1, 0], abs=0.01)
    figure(points, str(tmp_path / "growth.png"))
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_a_larger_group_takes_more_memory_in_proportion() -> None:
    small, large = (measure("group_size", size, repeats=1) for size in (2, 8))
    assert large.rollout_bytes / small.rollout_bytes == pytest.approx(4, rel=0.1)
    assert 1.5 < large.update_bytes / small.update_bytes < 4.5
    assert small.rollout_seconds > 0
    assert small.update_seconds > 0


def test_kept_results_are_of_every_size_and_nothing_grows_faster_than_expected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    points = [Point(**json.loads(line)) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    assert {sweep: [p.value for p in points if p.sweep == sweep] for sweep in SWEEPS} == SWEEPS
    found = exponents(points)
    # Tokens x steps, and attention over both in small models: between 2 and 3; an update has no steps.
    assert found["completion_length"]["rollout_seconds"] < 3
    assert found["completion_length"]["update_seconds"] < 2
    for sweep in ("group_size", "vocabulary_size"):
        assert all(found[sweep][name] < 1.1 for name in MEASURED)
    main(["--read", str(RESULTS)])
    told = capsys.readouterr().err
    assert all(f"{sweep}: rollout_seconds {slopes['rollout_seconds']:+.2f}" in told for sweep, slopes in found.items())
