"""The speed benchmarks: both ways agree, in small; measuring is right; and, slowly, the gates hold."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks import __main__ as command
from benchmarks.speed import comparison as comparisons
from benchmarks.speed.comparison import Comparison, Result, measure, missed, table
from benchmarks.speed.memory import peak_bytes
from benchmarks.speed.models import HEAD_SHARE, make_policy
from benchmarks.speed.registry import BENCHMARKS, SMALL
from torch import Tensor

from stabledrl.chunked_cross_entropy import token_log_probs
from stabledrl.randomness import Purpose, uniforms
from stabledrl.samplers.categorical import sample_tokens

SLACK = 0.85
MEGABYTE = 2**20


@pytest.mark.parametrize("name", BENCHMARKS)
def test_ours_and_the_plain_way_agree_and_can_be_run(name: str) -> None:
    for comparison in BENCHMARKS[name](**SMALL[name]):
        assert comparison.id == name
        comparison.check()
        comparison.ours()
        comparison.baseline()


def next_token(logits: Tensor, draws: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    tokens, probability = sample_tokens(logits, draws, temperature)
    return (tokens + 1) % logits.shape[-1], probability


def by_place(keys: Tensor, purpose: Purpose, step: int, positions: Tensor) -> Tensor:
    return uniforms(torch.arange(len(keys)), purpose, step, positions)


def unweighted(log_probs: Tensor, *_: Any) -> Tensor:
    return log_probs.sum(dim=(1, 2))


def half(*parts: Any) -> Tensor:
    return token_log_probs(*parts) / 2


FAULTS: list[tuple[str, str, Callable[..., Any]]] = [
    ("R1", "stabledrl.samplers.semi_autoregressive.sample_tokens", next_token),
    ("R2", "stabledrl.samplers.semi_autoregressive.sample_tokens", next_token),
    ("R3", "benchmarks.speed.sampling.sample_tokens", next_token),
    ("R4", "benchmarks.speed.sampling.transfer", lambda confidence, masked, count: confidence > 0.5),
    ("R5", "stabledrl.samplers.block_diffusion.sample_tokens", next_token),
    ("R6", "stabledrl.samplers.semi_autoregressive.uniforms", by_place),
    ("E1", "stabledrl.backbones.policy.token_log_probs", half),
    *((name, "benchmarks.speed.plain.elbo", unweighted) for name in ("S1", "S2", "U1")),
]


def test_every_benchmark_has_a_fault_below() -> None:
    assert [name for name, *_ in FAULTS] == list(BENCHMARKS)


@pytest.mark.parametrize(("name", "place", "fault"), FAULTS)
def test_a_check_finds_a_fault(name: str, place: str, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = BENCHMARKS[name](**SMALL[name])
    monkeypatch.setattr(place, fault)
    for comparison in made:
        with pytest.raises(AssertionError):
            comparison.check()


def test_peak_is_what_is_alive_at_once_and_repeats() -> None:
    given = torch.zeros(MEGABYTE)

    def run() -> None:
        first = given + 1  # 4 MB
        second = first * 2  # 8 MB
        del first
        third = second[: MEGABYTE // 2].view(2, -1)  # a view of the same memory
        third += 1
        second.add_(1)

    assert [peak_bytes(run) for _ in range(3)] == [8 * MEGABYTE] * 3


def test_peak_counts_the_backward_pass() -> None:
    weight = torch.ones(MEGABYTE, requires_grad=True)

    def run() -> None:
        (weight.exp() * 2).sum().backward()
        weight.grad = None

    assert peak_bytes(run) >= 12 * MEGABYTE


def test_ratio_is_of_the_lowest_times_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"ours": [3.0, 1.0, 2.0], "baseline": [9.0, 12.0, 6.0]}
    called: list[str] = []

    def run(name: str) -> Callable[[], float]:
        return lambda: seconds[name][sum(one == name for one in called) - 1]

    def clock(way: Callable[[], float]) -> float:
        called.append("ours" if way is ours else "baseline")
        return way()

    ours, baseline = run("ours"), run("baseline")
    monkeypatch.setattr(comparisons, "_cpu_seconds", clock)
    checks: list[int] = []
    compared = Comparison(
        id="X", case="none", ours=ours, baseline=baseline, check=lambda: checks.append(len(called)), gate=7.0
    )
    found = measure(compared)
    assert called == ["ours", "baseline"] * 3
    assert checks == [0]
    assert (found.ratio, found.ours, found.baseline) == (6.0, 1.0, 6.0)
    assert (found.ratio_median, found.ours_median, found.baseline_median) == (4.5, 2.0, 9.0)
    assert missed(found)
    assert "6.00 MISSED" in table([found])


def test_nothing_is_measured_where_the_ways_disagree() -> None:
    def disagree() -> None:
        raise AssertionError("differ")

    def never() -> None:
        pytest.fail("was run")

    with pytest.raises(AssertionError, match="differ"):
        measure(Comparison(id="X", case="none", ours=never, baseline=never, check=disagree))


@pytest.mark.parametrize("layers", [2, 4])
def test_models_have_lladas_share_of_head(layers: int) -> None:
    model = make_policy(layers=layers).model
    head = model.get_output_embeddings().weight.numel()
    body = sum(weight.numel() for weight in model.model.layers.parameters())
    assert head / body == pytest.approx(HEAD_SHARE, rel=0.01)


def test_command_prints_a_json_line_each_and_tells_of_missed_gates(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Result(
        id="R4", case="c", ratio=2.0, ours=1.0, baseline=2.0, unit="CPU seconds", ratio_median=2.0, ours_median=1.0,
        baseline_median=2.0, rounds=1, gate=None, goal=None,
    )  # fmt: skip
    monkeypatch.setattr(command, "measure", lambda comparison: result)
    assert command.main(["--only", "R4"]) == 0
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert [line["id"] for line in lines] == ["R4"] * 2
    assert lines[0].keys() >= {"id", "ratio", "ours", "baseline", "unit"}
    assert "| R4 |" in captured.err
    monkeypatch.setattr(command, "measure", lambda comparison: Result(**{**vars(result), "gate": 3.0}))
    assert command.main(["--only", "R4"]) == 1


def test_results_that_are_kept_are_of_all_benchmarks_and_reach_their_gates() -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "R4", "--write"])
    lines = [Result(**json.loads(line)) for line in command.RESULTS.read_text(encoding="utf-8").splitlines()]
    assert list(dict.fromkeys(line.id for line in lines)) == list(BENCHMARKS)
    assert not [line for line in lines if missed(line)]


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_gates_hold_with_slack(name: str) -> None:
    for comparison in BENCHMARKS[name]():
        found = measure(comparison)
        print(json.dumps(vars(found)), file=sys.stderr)
        assert found.ratio >= SLACK * (found.gate or 0), f"{found.case}: {found.ratio} of {found.gate}"
