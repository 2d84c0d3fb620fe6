"""PolicyDriftMonitor, and the reference that it and the KL penalty need."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import Recorder, events, same, tiny_module, tiny_policy, train, weights

from stabledrl.callbacks import PolicyDriftMonitor, RunCheckpoint
from stabledrl.callbacks.sample_table import SampleTable
from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.objectives.kl import kl_penalty


class Counted(torch.nn.Module):
    """Counts the reference's forward passes."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy, self.calls = policy, 0

    def forward(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        return self.policy(*arguments, **options)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_drift_is_zero_at_the_start_and_above_zero_later(tmp_path: Path, accumulate: int) -> None:
    train(tiny_module(), PolicyDriftMonitor(), steps=6, updates=2, accumulate=accumulate, log_to=tmp_path)
    drift = events(tmp_path)["train/drift_kl"]
    assert list(drift) == [0, 2, 4]
    assert drift[0] == [0.0]
    assert drift[2][0] > 1e-6
    assert drift[4][0] > 1e-6


def test_drift_is_k3_of_old_against_reference_over_the_whole_rollout(tmp_path: Path) -> None:
    recorder = Recorder()
    train(tiny_module(), recorder, PolicyDriftMonitor(), steps=2, updates=1, accumulate=2, log_to=tmp_path)
    parts = [batch["rollouts"] for batch in recorder.batches[2:]]
    values = torch.cat([kl_penalty(part.old.elbo, part.reference.elbo, "k3") for part in parts])
    assert len(values) == 8
    assert events(tmp_path)["train/drift_kl"][1] == [pytest.approx(values.mean().item(), rel=1e-5)]


def test_drift_is_logged_every_n_rollouts(tmp_path: Path) -> None:
    train(tiny_module(), PolicyDriftMonitor(every_n_rollouts=2), steps=4, updates=1, log_to=tmp_path)
    assert list(events(tmp_path)["train/drift_kl"]) == [0, 2]


def test_without_monitor_and_kl_there_is_no_reference(tmp_path: Path) -> None:
    recorder, module = Recorder(), tiny_module()
    train(module, recorder, steps=2, log_to=tmp_path)
    assert module.reference is None
    assert all(batch["rollouts"].reference is None for batch in recorder.batches)
    assert not {"train/drift_kl", "train/kl_reference"} & events(tmp_path).keys()


@pytest.mark.parametrize("options", [{"kl_coefficient": 0.1}, {"kl_coefficient": 0.0}])
def test_the_reference_makes_one_pass_a_rollout(options: dict[str, float]) -> None:
    module = tiny_module(**options)
    module.needs_reference = True
    module.configure_model()
    counted = Counted(module.reference)
    module._reference = (counted,)  # type: ignore[assignment]
    train(module, PolicyDriftMonitor(), steps=6, updates=3)
    assert counted.calls == 2


def test_the_reference_is_frozen_and_out_of_every_state(tmp_path: Path) -> None:
    module, start = tiny_module(), weights(tiny_policy())
    train(module, PolicyDriftMonitor(), RunCheckpoint(dirpath=str(tmp_path)), steps=2)
    reference: Any = module.reference
    assert same(weights(reference), start)
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert not reference.training
    assert not same(weights(module.loaded_policy), start)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert saved.keys() == module.state_dict().keys() == {f"policy.{name}" for name in start}
    assert len(list(module.parameters())) == len(list(tiny_policy().parameters()))


@pytest.mark.parametrize("options", [{}, {"kl_coefficient": 0.1}])
def test_after_a_resume_the_reference_is_the_policy_the_run_started_from(
    tmp_path: Path, options: dict[str, float]
) -> None:
    start = weights(tiny_policy())
    train(tiny_module(**options), PolicyDriftMonitor(), RunCheckpoint(dirpath=str(tmp_path)), steps=3)
    module = tiny_module(**options)
    train(module, PolicyDriftMonitor(), steps=4, ckpt_path=tmp_path / "last.ckpt")
    assert same(weights(module.reference), start)  # type: ignore[arg-type]


def test_a_policy_converted_by_the_precision_starts_without_drift(tmp_path: Path) -> None:
    module = tiny_module(optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))
    train(module, PolicyDriftMonitor(), steps=1, log_to=tmp_path, precision="bf16-true")
    assert next(module.parameters()).dtype == torch.bfloat16
    assert events(tmp_path)["train/drift_kl"] == {0: [0.0]}


def test_state_survives_a_resume(tmp_path: Path) -> None:
    def part(name: str, steps: int, resume: Path | None = None) -> list[Any]:
        own = [PolicyDriftMonitor(every_n_rollouts=2), SampleTable(every_n_rollouts=2)]
        checkpoint = RunCheckpoint(dirpath=str(tmp_path / name))
        train(tiny_module(), *own, checkpoint, steps=steps, updates=2, ckpt_path=resume, log_to=tmp_path / name)
        return [callback.state_dict() for callback in own]

    whole = part("whole", 7)
    part("a", 3)
    assert part("b", 7, tmp_path / "a" / "last.ckpt") == whole
    assert list(events(tmp_path / "b")["train/drift_kl"]) == [4]


def expected_kl(estimator: str, difference: torch.Tensor) -> torch.Tensor:
    return {
        "k1": difference,
        "k2": difference.square() / 2,
        "k3": torch.exp(-difference) - 1 + difference,
    }[estimator]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_chosen_estimator_is_penalised_and_logged(estimator: Any) -> None:
    losses: dict[float, dict[str, float]] = {}
    likelihood = MonteCarloElbo(draws=2, masking="uniform", share_masks=True)
    for coefficient in (0.0, 0.5):
        module, recorder = (
            tiny_module(kl_coefficient=coefficient, kl_estimator=estimator, likelihood=likelihood),
            Recorder(),
        )
        module.needs_reference = True
        module.configure_model()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1.5)
        train(module, recorder, steps=1)
        losses[coefficient] = recorder.metrics[0]
    # Shared masks and unmoved weights: the current estimate is the old one.
    rollouts = recorder.batches[0]["rollouts"]
    divergence = expected_kl(estimator, rollouts.old.elbo - rollouts.reference.elbo).mean().item()
    assert abs(divergence) > 1e-6
    assert losses[0.5]["train/kl_reference"] == pytest.approx(divergence, rel=1e-3)
    assert losses[0.0]["train/kl_reference"] == pytest.approx(divergence, rel=1e-3)
    assert losses[0.5]["train/loss"] - losses[0.0]["train/loss"] == pytest.approx(0.5 * divergence, rel=1e-2)


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(UserInputError, match="every_n_rollouts 0 must be at least 1"):
        PolicyDriftMonitor(every_n_rollouts=0)
