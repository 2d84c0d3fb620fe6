"""Two processes train what one does, resume exactly, and fail together: DDP, FSDP and FSDP2 on the CPU."""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.runs import SMALL, write
from tests.distributed.launch import ROOT, launch
from tests.distributed.scenarios import SCENARIOS, run
from tests.training import same

MADE_APART = ("log_ratio_std", "ratio_std", "ratio_kurtosis", "effective_sample_size", "tokens_per_second")
"""Metrics that are means over what a process holds, or times."""
FAULTS = {
    "sampling": (
        "ProcessFailedError",
        "process 1 of 2, rollout 0, completions of prompts {}: FloatingPointError: no finite logits in rows [2]",
    ),
    "grading": (
        "UserInputError",
        "process 0 of 2, rollout 0, completions of prompts {}: UserInputError: column 'gold' is empty",
    ),
}
STRATEGIES = ("ddp", "fsdp", "fsdp2")

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="module")
def alone(directory: Path) -> Any:
    """One process's run of a scenario, with its checkpoint."""

    @cache
    def result(scenario: str) -> dict[str, Any]:
        kept, _ = run(directory / "alone" / scenario, **SCENARIOS[scenario])
        return {**kept, "checkpoint": saved(directory / "alone" / scenario)}

    return result


def saved(directory: Path) -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(directory / "last.ckpt", weights_only=True)
    return checkpoint


@pytest.fixture(scope="module")
def together(directory: Path) -> Any:
    """What two processes found, by rank; a launch for all checks of a strategy."""

    @cache
    def result(strategy: str, *checks: str) -> Results:
        place = directory / strategy
        place.mkdir(exist_ok=True)
        for process in launch(strategy, str(place), *checks):
            assert process.returncode == 0, process.stderr[-5000:]
        return [torch.load(place / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]

    return result


ALL = ("losses", "resume", "uneven", "gathers", "reference", "broken_gradient", "collapse", "faults")


def check_losses(scenario: str, alone: Mapping[str, Any], results: Results, place: Path) -> None:
    for own in results:
        metrics = own["losses"][scenario]["metrics"]
        assert len(metrics) == len(alone["metrics"]) == 6
        for expected, found in zip(alone["metrics"], metrics):
            assert expected.keys() == found.keys()
            for name in expected:
                if not name.endswith(MADE_APART):
                    assert found[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-5, nan_ok=True), name
    weights = saved(place)["state_dict"]
    assert weights.keys() == alone["checkpoint"]["state_dict"].keys()
    for name, expected in alone["checkpoint"]["state_dict"].items():
        torch.testing.assert_close(weights[name], expected, rtol=0, atol=2e-5)


def check_faults(found: Mapping[str, tuple[str, str]]) -> None:
    assert found.keys() == FAULTS.keys()
    for name, (kind, message) in FAULTS.items():
        assert found[name][0] == kind
        start, end = message.split("{}")
        assert found[name][1].startswith(start)
        assert found[name][1].endswith(end)


def test_two_processes_train_what_one_does_and_fail_together(directory: Path, alone: Any, together: Any) -> None:
    scenarios = ("whole groups", "split groups")
    place = directory / "ddp" / "losses"
    results = together("ddp", "losses:" + ":".join(scenarios), "faults")
    for scenario in scenarios:
        check_losses(scenario, alone(scenario), results, place / scenario)
    for own in results:
        check_faults(own["faults"])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_losses_and_weights_are_those_of_one_process(
    strategy: str, scenario: str, directory: Path, alone: Any, together: Any
) -> None:
    results = together(strategy, *ALL)
    check_losses(scenario, alone(scenario), results, directory / strategy / "losses" / scenario)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_process_without_rewards_does_not_hinder_the_other(strategy: str, together: Any) -> None:
    first, second = (own["losses"]["no rewards on one process"]["rewarded"] for own in together(strategy, *ALL))
    assert {(False, False), (True, False), (False, True)} <= set(zip(first, second))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_resumed_inside_a_rollout_is_the_uninterrupted_one(strategy: str, together: Any) -> None:
    for own in together(strategy, *ALL):
        check_resume(own["resume"])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp-sharded", "fsdp2-sharded"])
def test_the_same_from_a_checkpoint_with_a_file_per_process(strategy: str, directory: Path, together: Any) -> None:
    for own in together(strategy, "resume", "collapse"):
        check_resume(own["resume"])
        assert own["collapse"]["rollbacks"] == 1
    assert (directory / strategy / "resume" / "half" / "last.ckpt").is_dir()


def check_resume(found: Mapping[str, Any]) -> None:
    assert same(found["whole"]["weights"], found["rest"]["weights"])
    losses = [[metrics["train/loss"] for metrics in found[part]["metrics"]] for part in ("whole", "rest")]
    assert losses[0][3:] == losses[1]
    assert len(losses[1]) == 3


@pytest.mark.slow
def test_a_checkpoint_of_two_processes_is_gone_on_from_by_one(directory: Path, alone: Any, together: Any) -> None:
    results = together("ddp", *ALL)
    half = directory / "ddp" / "resume" / "half" / "last.ckpt"
    rest, _ = run(directory / "one after two", resume=half, **SCENARIOS["split groups"])
    expected = [metrics["train/loss"] for metrics in results[0]["resume"]["rest"]["metrics"]]
    assert [metrics["train/loss"] for metrics in rest["metrics"]] == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_process_that_samples_longer_hinders_none(strategy: str, alone: Any, together: Any) -> None:
    expected = [metrics["train/loss"] for metrics in alone("whole groups")["metrics"]]
    for own in together(strategy, *ALL):
        assert [metrics["train/loss"] for metrics in own["uneven"]["metrics"]] == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "gathers"), [("ddp", 0), ("fsdp", 6), ("fsdp2", 6)])
def test_weights_are_gathered_once_a_rollout_however_many_steps(strategy: str, gathers: int, together: Any) -> None:
    # Two layers and the rest, of the policy and of the reference.
    for own in together(strategy, *ALL):
        assert own["gathers"] == {1: [gathers] * 3, 4: [gathers] * 3}


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "parts"), [("ddp", 1), ("fsdp", 2), ("fsdp2", 2)])
def test_the_reference_is_sharded_as_the_policy_is(strategy: str, parts: int, together: Any) -> None:
    for own in together(strategy, *ALL):
        assert own["reference"]["here"] * parts == pytest.approx(own["reference"]["whole"], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gradient_that_is_broken_on_one_process_is_skipped_by_all(strategy: str, together: Any) -> None:
    for own in together(strategy, *ALL):
        metrics = own["broken_gradient"]["metrics"]
        assert [one["train/skipped_updates"] for one in metrics] == [0, 1, 1, 1, 1, 1]
        assert all(weight.isfinite().all() for weight in own["broken_gradient"]["weights"])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_go_back_to_the_healthy_state_together(strategy: str, together: Any) -> None:
    first, second = (own["collapse"] for own in together(strategy, *ALL))
    assert first["rollbacks"] == second["rollbacks"] == 1
    assert [one["train/loss"] for one in first["metrics"]] == [one["train/loss"] for one in second["metrics"]]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_failure_of_one_process_ends_all_with_one_message(strategy: str, together: Any) -> None:
    first, second = (own["faults"] for own in together(strategy, *ALL))
    assert first == second
    check_faults(first)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ["ddp", "fsdp2"])
def test_the_command_line_starts_the_other_processes(layer: str, tmp_path: Path) -> None:
    configs = ["configs/quickstart.yaml", f"configs/trainer/{layer}.yaml", write(tmp_path, "small.yaml", SMALL)]
    options = [part for path in configs for part in ("-c", path)]
    here = ["--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.precision=32-true"]
    command = [sys.executable, "-m", "stabledrl", "fit", *options, *here, f"--trainer.default_root_dir={tmp_path}"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
        check=False,
        capture_output=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.count("checkpoint: ") == 1
    assert done.stdout.count("logs: ") == 1
    assert len((tmp_path / "logs/quickstart/version_0/samples.jsonl").read_text().splitlines()) == 4
    assert saved(tmp_path / "checkpoints/quickstart/version_0")["global_step"] == 2
