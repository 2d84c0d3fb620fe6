"""Checkpoints of several processes: any other number goes on from them, they are exported, a full disk ends all."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.launch import launch
from tests.distributed.scenarios import SCENARIOS, run, supervised

from stabledrl.backbones import load_policy
from stabledrl.callbacks import GroupRollout
from stabledrl.checkpoints import read_checkpoint
from stabledrl.errors import UserInputError
from stabledrl.export import export_checkpoint

pytestmark = pytest.mark.slow
FULL = ("ddp", "fsdp", "fsdp2")
SHARDED = ("fsdp-sharded", "fsdp2-sharded")
OPTIONS = SCENARIOS["split groups"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def expected(directory: Path) -> list[float]:
    """Losses after update 3 of a run of one process, which leaves that update's checkpoint too."""
    run(directory / "alone" / "half", steps=3, **OPTIONS)
    kept, _ = run(directory / "alone" / "whole", **OPTIONS)
    return losses(kept)[3:]


def losses(kept: dict[str, Any]) -> list[float]:
    return [metrics["train/loss"] for metrics in kept["metrics"]]


@pytest.fixture(scope="module")
def by_two(directory: Path, expected: list[float]) -> Any:
    """What two processes found, by rank: one launch per strategy."""

    @cache
    def result(strategy: str) -> list[dict[str, Any]]:
        place = directory / strategy
        place.mkdir()
        alone = directory / "alone" / "half" / "last.ckpt"
        full = 1 if strategy in SHARDED else 0  # the process that cannot write
        checks = ["half", f"go_on:{alone}", f"full_disk:{full}", "demonstrations"]
        if strategy in SHARDED:
            other = directory / next(one for one in SHARDED if one != strategy) / "half" / "last.ckpt"
            checks += [f"refused:{other}"] if other.exists() else []
        return launched(strategy, place, *checks)

    return result


def launched(strategy: str, place: Path, *checks: str, processes: int = 2) -> list[dict[str, Any]]:
    for process in launch(strategy, str(place), *checks, processes=processes):
        assert process.returncode == 0, process.stderr[-5000:]
    return [torch.load(place / f"rank{rank}.pt", weights_only=True) for rank in range(processes)]


@pytest.mark.parametrize("strategy", [*FULL, *SHARDED])
def test_two_processes_go_on_from_one(strategy: str, by_two: Any, expected: list[float]) -> None:
    for own in by_two(strategy):
        assert losses(own["go_on"]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("strategy", FULL)
def test_one_process_goes_on_from_two_by_a_file(
    strategy: str, by_two: Any, expected: list[float], directory: Path
) -> None:
    by_two(strategy)
    kept, _ = run(directory / "after" / strategy, resume=directory / strategy / "half" / "last.ckpt", **OPTIONS)
    assert losses(kept) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("strategy", SHARDED)
def test_one_process_goes_on_from_two_by_a_directory(
    strategy: str, by_two: Any, expected: list[float], directory: Path
) -> None:
    by_two(strategy)
    last = directory / strategy / "half" / "last.ckpt"
    assert last.is_dir()
    place = directory / "after" / strategy
    place.mkdir(parents=True)
    (own,) = launched(strategy, place, f"go_on:{last}", processes=1)
    assert losses(own["go_on"]) == pytest.approx(expected, abs=1e-5)


def test_a_directory_is_refused_by_what_cannot_read_it(by_two: Any, directory: Path) -> None:
    by_two(SHARDED[0])
    for own in by_two(SHARDED[1]):
        assert "written by FSDP, which FSDP2 cannot read" in own["refused"]
    last = directory / SHARDED[0] / "half" / "last.ckpt"
    with pytest.raises(UserInputError, match=r"has a file per process: go on with .*stabledrl.strategies.FSDP, on any"):
        run(directory / "refused", resume=last, **OPTIONS)


@pytest.mark.parametrize("strategy", [*FULL, *SHARDED])
def test_two_processes_export_what_one_does(strategy: str, by_two: Any, directory: Path) -> None:
    by_two(strategy)
    tokens = torch.tensor([[2, 3, 1, 1], [4, 5, 6, 1]])
    logits = []
    for name in ("alone", strategy):
        exported = export_checkpoint(
            directory / name / "half" / "last.ckpt", directory / "exported" / f"{name}-{strategy}"
        )
        with torch.no_grad():
            logits.append(load_policy(exported).logits(tokens))
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("strategy", [*FULL, *SHARDED])
def test_a_full_disk_of_one_process_ends_all_with_one_message_and_the_checkpoint_before(
    strategy: str, by_two: Any, directory: Path
) -> None:
    first, second = (own["full_disk"] for own in by_two(strategy))
    assert first == second
    assert "File too large; the checkpoints before are intact" in first
    place = directory / strategy / "full_disk"
    assert sorted(path.name for path in place.iterdir()) == ["last.ckpt", "step-000003.ckpt"]
    assert read_checkpoint(place / "last.ckpt")["global_step"] == 3
    rollout = GroupRollout(group_size=4)
    rollout.load_state_dict(read_checkpoint(place / "last.ckpt")["callbacks"]["GroupRollout"])


@pytest.mark.parametrize("strategy", FULL)
def test_two_processes_learn_from_demonstrations_what_one_does(strategy: str, by_two: Any) -> None:
    alone = supervised(devices=1)
    for own in by_two(strategy):
        assert own["demonstrations"]["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    if strategy == "ddp":
        for found, weight in zip(own["demonstrations"]["weights"], alone["weights"]):
            torch.testing.assert_close(found, weight, rtol=0, atol=2e-5)
