"""Training adapters: what is trained, saved and resumed, the reference without a copy, dropout."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.adapters import SETTINGS, adapted, adapters, lora_module, without_adapters
from tests.cli.runs import MODEL
from tests.test_learning import SAMPLER, WriteSevens
from tests.training import (
    LENGTH,
    Digits,
    Recorder,
    Scripted,
    largest_difference,
    level,
    same,
    tiny_policy,
    train,
    weights,
)

from stabledrl.backbones import load_policy
from stabledrl.backbones.lora import LoRA
from stabledrl.callbacks import GroupRollout, PolicyDriftMonitor, RewardCollapseMonitor, RunCheckpoint
from stabledrl.checkpoints import POLICY_KEY, WEIGHTS_PREFIX, read_checkpoint
from stabledrl.data.sudoku import Sudoku
from stabledrl.experience import score
from stabledrl.export import export_policy
from stabledrl.likelihoods import MonteCarloElbo, StaircaseElbo
from stabledrl.module import DiffusionPolicyModule
from stabledrl.objectives import StableDRL
from stabledrl.samplers import BlockDiffusionSampler, SemiAutoregressiveSampler

pytest.importorskip("peft")


def run(directory: Path, steps: int, resume: Path | None = None, **options: Any) -> tuple[DiffusionPolicyModule, Path]:
    module = lora_module(**options)
    callbacks = [PolicyDriftMonitor(), RunCheckpoint(dirpath=str(directory))]
    train(module, *callbacks, steps=steps, ckpt_path=resume)
    return module, directory / "last.ckpt"


def test_the_weights_stay_bitwise_and_the_adapters_move(tmp_path: Path) -> None:
    module, _ = run(tmp_path, steps=4)
    assert same(without_adapters(module.loaded_policy), tiny_policy().model.state_dict())
    fresh = tiny_policy()
    LoRA(**SETTINGS).add_to(fresh)
    first, last = adapters(fresh), adapters(module.loaded_policy)
    assert first.keys() == last.keys()
    assert all(not torch.equal(first[name], last[name]) for name in first)


def test_a_checkpoint_holds_adapters_alone(tmp_path: Path) -> None:
    module, path = run(tmp_path, steps=2)
    checkpoint = torch.load(path, weights_only=True)
    own = {WEIGHTS_PREFIX + name: weight for name, weight in adapters(module.loaded_policy).items()}
    assert same(checkpoint["state_dict"], own)
    assert len(checkpoint["optimizer_states"][0]["state"]) == len(own)
    assert checkpoint[POLICY_KEY]["fingerprint"] == module.loaded_policy.fingerprint


@pytest.mark.parametrize("half", [3, 4])
def test_a_resumed_run_is_the_uninterrupted_one(half: int, tmp_path: Path) -> None:
    """Also inside a rollout, with dropout and the drift monitor."""
    whole, _ = run(tmp_path / "whole", steps=6, dropout=0.3)
    _, path = run(tmp_path / "half", steps=half, dropout=0.3)
    rest, _ = run(tmp_path / "rest", steps=6, resume=path, dropout=0.3)
    assert same(weights(whole), weights(rest))
    assert whole.trainer.callback_metrics["train/loss"] == rest.trainer.callback_metrics["train/loss"]


def test_a_policy_from_a_path_is_the_one_in_memory(tmp_path: Path) -> None:
    path = str(export_policy(tiny_policy(), tmp_path / "base"))
    loaded, given = lora_module(policy=path), lora_module()
    train(loaded)
    train(given)
    assert same(weights(loaded), weights(given))


def test_the_reference_is_the_model_of_the_start_without_a_copy() -> None:
    module, recorder = lora_module(), Recorder()
    train(module, PolicyDriftMonitor(), recorder, steps=6, updates=2)
    assert module._reference == ()
    assert recorder.metrics[0]["train/drift_kl"] == 0
    assert recorder.metrics[-1]["train/drift_kl"] > 0
    start = tiny_policy()
    for batch in recorder.batches:
        rollouts = batch["rollouts"]
        corruption = module.likelihood.corrupt(rollouts.sequences, update=None)
        expected = score(
            module.likelihood,
            start,
            rollouts.sequences,
            corruption,
            vocabulary=start.vocabulary,
            rows_per_forward=None,
        )
        assert torch.equal(rollouts.reference.elbo, expected.elbo)
        assert torch.equal(rollouts.old.elbo, expected.elbo) == (batch["rollout_index"] == 0)


def test_without_a_use_there_is_no_reference() -> None:
    module, recorder = lora_module(kl_coefficient=0.0), Recorder()
    train(module, recorder)
    assert module.reference is None
    assert recorder.batches[0]["rollouts"].reference is None


def test_dropout_is_in_the_update_and_in_nothing_before_it() -> None:
    policy = adapted(tiny_policy(), **SETTINGS)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            parameter.data *= 20
    recorders = []
    for dropout in (0.0, 0.5):
        start = tiny_policy()
        LoRA(**SETTINGS, dropout=dropout).add_to(start)
        start.model.load_state_dict(adapters(policy), strict=False)
        recorder = Recorder()
        train(lora_module(policy=start, dropout=dropout), recorder, steps=1)
        recorders.append(recorder)
    plain, dropped = (recorder.batches[0]["rollouts"] for recorder in recorders)
    assert not torch.equal(plain.old.elbo, plain.reference.elbo)
    assert torch.equal(plain.sequences.token_ids, dropped.sequences.token_ids)
    assert torch.equal(plain.old.elbo, dropped.old.elbo)
    assert torch.equal(plain.reference.elbo, dropped.reference.elbo)
    assert recorders[0].metrics[0]["train/loss"] != recorders[1].metrics[0]["train/loss"]


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"accumulate": 4}], ids=str)
def test_dropout_does_not_depend_on_micro_batches(options: dict[str, int]) -> None:
    """Groups of four are split: their normalisers come of a pass without gradient."""
    modules = []
    for own in ({}, options):
        module = lora_module(dropout=0.4, objective=StableDRL(eps_low=0.2, eps_high=0.2))
        train(module, steps=4, prompts=1, **own)
        modules.append(module)
    assert largest_difference(weights(modules[0]), weights(modules[1])) < 2e-5


def test_dropout_is_repeated_where_activations_are_computed_again() -> None:
    plain, again = lora_module(dropout=0.4), lora_module(dropout=0.4, activation_checkpointing=True)
    train(plain, steps=4)
    train(again, steps=4)
    assert largest_difference(weights(plain), weights(again)) < 1e-6


def test_small_steps_train_adapters_of_bfloat16_weights() -> None:
    module = lora_module(
        policy=tiny_policy().to(torch.bfloat16), optimizer=lambda given: torch.optim.AdamW(given, lr=1e-6)
    )
    train(module, steps=2, precision="bf16-mixed")
    fresh = tiny_policy().to(torch.bfloat16)
    LoRA(**SETTINGS).add_to(fresh)
    moved = adapters(module.loaded_policy)
    assert all(not torch.equal(moved[name], weight) for name, weight in adapters(fresh).items())


def test_a_rollback_returns_to_the_healthy_adapters(tmp_path: Path) -> None:
    monitor = RewardCollapseMonitor(window=2, max_drop=0.3, action="rollback", save_every_n_rollouts=1)
    script = Scripted(*(level(mean) for mean in (0.8, 0.8, 0.8, 0.1)))
    module = lora_module(optimizer=lambda given: torch.optim.SGD(given, lr=1.0))
    train(module, monitor, RunCheckpoint(dirpath=str(tmp_path)), steps=4, updates=1, tasks=[Digits(script)])
    assert monitor.rollbacks == 1
    healthy = read_checkpoint(tmp_path / "healthy.ckpt")
    own = {WEIGHTS_PREFIX + name: weight for name, weight in adapters(module.loaded_policy).items()}
    assert same(healthy["state_dict"], own)
    assert healthy["global_step"] == 3
    assert same(without_adapters(module.loaded_policy), tiny_policy().model.state_dict())


def test_adapters_learn_to_write_one_character() -> None:
    # The head is frozen: with the small weights of a new one, no character could be made likely.
    module = lora_module(
        policy=tiny_policy(characters="0123456789=", hidden_size=32, initializer_range=0.2),
        kl_coefficient=0.0,
        likelihood=MonteCarloElbo(draws=2, masking="complementary"),
        sampler=SAMPLER,
    )
    rollout = GroupRollout(group_size=8, temperature=1.0, updates_per_rollout=2, baseline="standardize", seed=0)
    trainer = train(module, steps=30, prompts=4, tasks=[WriteSevens()], rollout=rollout)
    assert trainer.callback_metrics["rollout/reward_mean"] > 0.9  # chance is 1 in 13


def test_a_block_causal_policy_trains_its_adapters_alone() -> None:
    parts = {"sampler": BlockDiffusionSampler(LENGTH, 2, LENGTH), "likelihood": StaircaseElbo(block_size=2)}
    module = lora_module(policy=tiny_policy(block_size=2), **parts)
    recorder = Recorder()
    train(module, PolicyDriftMonitor(), recorder, steps=4)
    assert recorder.metrics[0]["train/drift_kl"] == 0
    assert recorder.metrics[-1]["train/drift_kl"] > 0
    assert same(without_adapters(module.loaded_policy), tiny_policy(block_size=2).model.state_dict())


@pytest.mark.slow
def test_adapters_raise_the_reward_of_the_shipped_model() -> None:
    recorder = Recorder()
    module = lora_module(
        policy=MODEL,
        lora=LoRA(rank=8, alpha=16),
        kl_coefficient=0.0,
        objective=StableDRL(eps_low=0.2, eps_high=0.2, surrogate="elbo"),
        likelihood=MonteCarloElbo(draws=2, masking="complementary"),
        sampler=SemiAutoregressiveSampler(completion_length=16, block_size=16, denoising_steps=16),
        optimizer=lambda given: torch.optim.AdamW(given, lr=1e-3),
    )
    rollout = GroupRollout(group_size=8, temperature=0.9, updates_per_rollout=2, baseline="standardize", seed=0)
    train(module, recorder, steps=60, prompts=8, tasks=[Sudoku(train_size=400)], rollout=rollout)
    rewards = [batch["metrics"]["rollout/reward_mean"] for batch in recorder.batches if batch["metrics"]]
    assert sum(rewards[-8:]) / 8 > sum(rewards[:8]) / 8 + 0.05
    assert same(without_adapters(module.loaded_policy), load_policy(MODEL).model.state_dict())
