"""DiffusionPolicyModule: what it refuses, when it loads, what its checkpoints hold, which metrics a run leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import Fixed, Recorder, events, same, tiny_module, tiny_policy, train, weights

from stabledrl.callbacks import (
    GradientSpikeMonitor,
    GroupRollout,
    PolicyDriftMonitor,
    RewardCollapseMonitor,
    RunCheckpoint,
    TaskEvaluation,
)
from stabledrl.checkpoints import POLICY_KEY, WEIGHTS_PREFIX
from stabledrl.errors import UserInputError
from stabledrl.likelihoods import MonteCarloElbo, StaircaseElbo
from stabledrl.module import DiffusionPolicyModule
from stabledrl.objectives import GRPO, StableDRL, TraceRL
from stabledrl.objectives.kl import KLEstimator

ROLLOUT = ("reward_mean", "reward_std", "accuracy", "zero_variance_groups", "completion_length", "tokens_per_second")
LOG_RATIO = ("log_ratio_mean", "log_ratio_std", "log_ratio_max", "clip_fraction_low", "clip_fraction_high")
UPDATE = ("loss", "grad_norm", "grad_norm_clipped", "effective_sample_size", "kl_reference")
COUNTS = ("nonfinite_updates", "skipped_updates", "spikes")
NAMES = {
    *(f"rollout/{name}" for name in ROLLOUT),
    *(f"train/{name}" for name in (*LOG_RATIO, *UPDATE, *COUNTS)),
    "val/digits/accuracy",
}


@pytest.mark.parametrize("objective", [StableDRL(), GRPO()], ids=["stabledrl", "grpo"])
def test_every_metric_is_in_the_event_file(tmp_path: Path, objective: Any) -> None:
    callbacks = [GradientSpikeMonitor(), PolicyDriftMonitor(), RewardCollapseMonitor(), TaskEvaluation()]
    train(tiny_module(objective=objective, kl_coefficient=0.1), *callbacks, steps=2, log_to=tmp_path)
    found = events(tmp_path)
    assert found.keys() >= NAMES
    assert all(len(values) == 1 for name in NAMES for values in found[name].values())
    assert all(list(found[name]) == [0, 1] for name in NAMES if name.startswith("train/"))


def test_an_objective_that_needs_more_than_the_likelihood_gives_is_refused_at_construction() -> None:
    with pytest.raises(UserInputError, match="StableDRL needs eubo, but MonteCarloElbo provides elbo,"):
        tiny_module(objective=StableDRL(), likelihood=MonteCarloElbo(eubo_beta=None))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"objective": TraceRL()},
            "TraceRL needs shared_masks, but MonteCarloElbo provides elbo, ",
        ),
        ({"likelihood": MonteCarloElbo(masking="trace"), "sampler": Fixed(2, 3)}, "MonteCarloElbo needs step_map, but"),
        ({"likelihood": StaircaseElbo(masking="trace"), "sampler": Fixed(2, 3)}, "StaircaseElbo needs step_map, but"),
        (
            {"objective": TraceRL(), "likelihood": MonteCarloElbo(share_masks=True), "sampler": Fixed(2, 3)},
            "TraceRL needs step_map, but .* Fixed nothing",
        ),
    ],
)
def test_an_objective_or_likelihood_that_needs_the_rollouts_trace_is_refused_without_it(
    options: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserInputError, match=told):
        tiny_module(**options)


def test_a_trace_satisfies_an_objective_that_compares_tokens() -> None:
    tiny_module(objective=TraceRL(), likelihood=MonteCarloElbo(masking="trace"))


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_kl_coefficient_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(UserInputError, match=f"kl_coefficient {value}"):
        tiny_module(kl_coefficient=value)


def test_an_unknown_kl_estimator_is_refused_at_construction() -> None:
    estimator: KLEstimator = "k4"  # type: ignore[assignment]
    with pytest.raises(UserInputError, match="kl_estimator 'k4' is not one of k1, k2, k3"):
        tiny_module(kl_estimator=estimator)


def save_policy(directory: Path, **shape: Any) -> str:
    policy = tiny_policy(**shape)
    policy.model.save_pretrained(directory)
    policy.tokenizer.save_pretrained(directory)
    return str(directory)


def test_a_policy_is_loaded_in_configure_model_and_not_before(tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    module = tiny_module(policy=path)  # nothing there yet
    assert module.policy is None
    save_policy(tmp_path / "model")
    module.configure_model()
    first = module.loaded_policy
    assert same(weights(first), weights(tiny_policy()))
    module.configure_model()
    assert module.loaded_policy is first


def test_a_policy_in_memory_is_held_once() -> None:
    module = tiny_module()
    assert all(name.startswith("policy.") for name in module.state_dict())


def test_a_policy_from_a_path_trains_as_one_in_memory(tmp_path: Path) -> None:
    loaded, given = tiny_module(policy=save_policy(tmp_path)), tiny_module()
    train(loaded, steps=2)
    train(given, steps=2)
    assert same(weights(loaded), weights(given))


def test_training_without_rollouts_is_refused() -> None:
    with pytest.raises(UserInputError, match="add the GroupRollout callback"):
        tiny_module().training_step({}, 0)


def bf16_module(lr: float, dtype: Any = "bfloat16", optimizer: Any = torch.optim.AdamW) -> DiffusionPolicyModule:
    policy = tiny_policy().to(getattr(torch, dtype))
    return tiny_module(policy=policy, optimizer=lambda parameters: optimizer(parameters, lr=lr))


def test_a_small_learning_rate_on_bf16_weights_is_refused() -> None:
    with pytest.raises(UserInputError, match="learning rate 9e-06 is lost on bfloat16 weights; use at least 1e-05"):
        train(bf16_module(9e-6), steps=1)
    assert train(bf16_module(1e-5), steps=1).global_step == 1
    assert train(bf16_module(1e-6, "float32"), steps=1).global_step == 1


def test_a_small_learning_rate_is_refused_where_the_trainer_makes_the_weights_bf16() -> None:
    with pytest.raises(UserInputError, match="lost on bfloat16 weights"):
        train(bf16_module(1e-6, "float32"), steps=1, precision="bf16-true")
    assert train(bf16_module(1e-6, "float32"), steps=1, precision="bf16-mixed").global_step == 1


def test_a_warm_up_does_not_count_as_a_small_learning_rate() -> None:
    module = bf16_module(1e-3)
    module._make_scheduler = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-4)
    assert train(module, steps=1).global_step == 1


def checkpoint_of(directory: Path, **options: Any) -> Path:
    train(tiny_module(**options), RunCheckpoint(dirpath=str(directory)), steps=1)
    return directory / "last.ckpt"


@pytest.mark.parametrize(
    ("shape", "difference"),
    [
        ({"hidden_size": 32}, "hidden_size: checkpoint 16, policy 32"),
        ({"num_layers": 2}, "num_hidden_layers: checkpoint 1, policy 2"),
        ({"characters": "0123456789=+-"}, "vocab_size: checkpoint 14, policy 15"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_before_loading(
    tmp_path: Path, shape: dict[str, Any], difference: str
) -> None:
    path = checkpoint_of(tmp_path)
    module = tiny_module(policy=tiny_policy(**shape))
    before = weights(module)
    with pytest.raises(UserInputError, match=difference):
        train(module, steps=2, ckpt_path=path)
    assert same(before, weights(module))


def test_a_checkpoint_of_another_mask_token_is_refused(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path)
    checkpoint = torch.load(path, weights_only=True)
    checkpoint[POLICY_KEY]["fingerprint"]["mask_token_id"] = 5
    torch.save(checkpoint, path)
    with pytest.raises(UserInputError, match="mask_token_id: checkpoint 5, policy 1"):
        train(tiny_module(), steps=2, ckpt_path=path)


def test_a_checkpoint_of_another_project_is_refused(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path)
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint[POLICY_KEY]
    torch.save(checkpoint, path)
    with pytest.raises(UserInputError, match="no entry 'policy'"):
        train(tiny_module(), steps=2, ckpt_path=path)


def test_a_checkpoint_holds_what_an_export_needs(tmp_path: Path) -> None:
    checkpoint = torch.load(checkpoint_of(tmp_path), weights_only=True)
    policy = tiny_policy()
    assert checkpoint[POLICY_KEY]["fingerprint"] == policy.fingerprint
    assert json.loads(checkpoint[POLICY_KEY]["files"]["config.json"])["vocab_size"] == 14
    assert "tokenizer.json" in checkpoint[POLICY_KEY]["files"]
    names = {name.removeprefix(WEIGHTS_PREFIX) for name in checkpoint["state_dict"]}
    assert names == policy.model.state_dict().keys()


def test_the_loss_that_is_logged_is_the_updates() -> None:
    module, recorder = tiny_module(kl_coefficient=0.1), Recorder()
    train(module, recorder, steps=1, updates=1)
    batch = recorder.batches[0]
    fresh = tiny_module(kl_coefficient=0.1)
    fresh.configure_model()
    rollouts = batch["rollouts"]
    corruption = fresh.likelihood.corrupt(rollouts.sequences, update=0)
    current = fresh.likelihood(fresh, rollouts.sequences, corruption, vocabulary=fresh.vocabulary)
    divergence = torch.exp(rollouts.reference.elbo - current.elbo) - 1 + current.elbo - rollouts.reference.elbo
    loss = fresh.objective(current, rollouts).loss + 0.1 * divergence.mean()
    assert recorder.metrics[0]["train/loss"] == pytest.approx(loss.item(), rel=1e-4)


def test_predictions_are_greedy_and_repeatable() -> None:
    rollout = GroupRollout(group_size=4, updates_per_rollout=1, seed=0)
    evaluations = []
    for _ in range(2):
        evaluation = TaskEvaluation()
        train(tiny_module(), evaluation, steps=1, rollout=rollout)
        evaluations.append(evaluation.last)
    assert evaluations[0] == evaluations[1]


@pytest.mark.parametrize("options", [{"lr": -0.1}, {"betas": (1.5, 0.9)}, {"nonsense": 1}], ids=str)
def test_settings_that_an_optimizer_refuses_are_the_users(options: dict[str, Any]) -> None:
    module = tiny_module(optimizer=lambda parameters: torch.optim.AdamW(parameters, **options))
    with pytest.raises(UserInputError, match="refused its settings"):
        module.configure_optimizers()
