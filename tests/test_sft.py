from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from transformers import AutoModelForCausalLM

from stabledrl.backbones import NewPolicy, Policy, load_policy
from stabledrl.callbacks import RunCheckpoint
from stabledrl.checkpoints import POLICY_KEY, find_last_checkpoint, read_checkpoint
from stabledrl.data import DemonstrationDataModule
from stabledrl.errors import UserInputError
from stabledrl.export import export_checkpoint, export_policy, load_any_policy
from stabledrl.likelihoods import MonteCarloElbo
from stabledrl.protocols import Split, Task
from stabledrl.schedules import WarmupDecay
from stabledrl.sft import SupervisedModule

SHAPE = NewPolicy(characters="0123456789=", hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16)


class Echo(Task):
    """Write the prompt's digit twice."""

    name = "echo"
    rewards = []
    reward_weights = []

    def rows(self, split: Split) -> Sequence[Mapping[str, Any]]:
        return [{"prompt": f"{digit}=", "completion": f"{digit}{digit}", "weak_completion": "0"} for digit in range(10)]


class Recorder(Callback):
    """Loss and shown prompts of every step."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.steps: list[int] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.losses.append(float(outputs["loss"]))
        self.steps.append(int(batch["step"]))


def module(policy: str | NewPolicy | Policy = SHAPE, **options: Any) -> SupervisedModule:
    return SupervisedModule(
        policy=policy,
        likelihood=MonteCarloElbo(draws=1, masking="uniform", reduction="length_normalized"),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        **options,
    )


def data() -> DemonstrationDataModule:
    # 3 steps an epoch, so that runs cross epochs.
    return DemonstrationDataModule(Echo(), completion_length=4, batch_size=3, weak_from_step=4, weak_share=0.5)


def fit(
    trained: SupervisedModule,
    steps: int,
    demonstrations: DemonstrationDataModule | None = None,
    directory: Path | None = None,
    resume: Path | None = None,
) -> Recorder:
    recorder = Recorder()
    callbacks: list[Callback] = [recorder]
    if directory is not None:
        callbacks.append(RunCheckpoint(dirpath=str(directory)))
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=directory is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    trainer.fit(trained, datamodule=demonstrations or data(), ckpt_path=resume)
    return recorder


def weights(trained: SupervisedModule) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])


def test_loss_falls_and_the_model_knows_the_answers() -> None:
    trained = module()
    strong = DemonstrationDataModule(Echo(), completion_length=4, batch_size=32)
    losses = fit(trained, 150, strong).losses
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])
    policy = trained.loaded_policy
    tokenizer, mask = policy.tokenizer, policy.vocabulary.mask_token_id
    prompts = torch.tensor([[*tokenizer(f"{digit}=").input_ids, mask, mask, mask, mask] for digit in range(10)])
    written = policy.logits(prompts)[:, 2:5].argmax(-1)
    expected = [[*tokenizer(f"{digit}{digit}").input_ids, tokenizer.eos_token_id] for digit in range(10)]
    assert (written == torch.tensor(expected)).double().mean() > 0.9


def test_loss_is_the_negative_elbo_of_the_batch() -> None:
    class Fixed(MonteCarloElbo):
        def __call__(self, *arguments: Any, **options: Any) -> Any:
            estimate = super().__call__(*arguments, **options)
            self.seen = estimate.elbo.detach()
            return estimate

    likelihood = Fixed(draws=1, masking="uniform", reduction="length_normalized")
    trained = SupervisedModule(SHAPE, likelihood)
    recorder = fit(trained, 1)
    assert recorder.losses[0] == pytest.approx(-likelihood.seen.mean().item(), abs=1e-6)
    assert likelihood.seen.shape == (3,)


def test_run_depends_on_its_seeds_alone() -> None:
    first, second = module(), module()
    fit(first, 4)
    torch.manual_seed(321)
    fit(second, 4)
    assert torch.equal(weights(first), weights(second))
    other = module(seed=1)
    fit(other, 4)
    assert not torch.equal(weights(first), weights(other))


@pytest.mark.parametrize("stop", range(1, 7))
def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, stop: int) -> None:
    whole, before, after = module(), module(), module()
    expected = fit(whole, 7)
    first = fit(before, stop, directory=tmp_path)
    second = fit(after, 7, resume=tmp_path / "last.ckpt")
    assert first.steps + second.steps == expected.steps == list(range(7))
    assert first.losses + second.losses == expected.losses
    assert torch.equal(weights(after), weights(whole))


def first_batch(trained: SupervisedModule) -> dict[str, Tensor]:
    trained.log = lambda *arguments, **options: None  # type: ignore[method-assign]
    demonstrations = data()
    demonstrations.trainer = type("Attached", (), {"lightning_module": trained})()
    return next(iter(demonstrations.train_dataloader()))


@pytest.mark.parametrize("name", ["step", "prompt_id", "sample_index"])
def test_masks_change_with_the_step_and_the_row(name: str) -> None:
    trained = module(SHAPE.build())
    batch = first_batch(trained)
    losses = {trained.training_step({**batch, name: batch[name] + shift}, 0).item() for shift in range(4)}
    assert len(losses) > 1
    assert trained.training_step(batch, 0).item() == trained.training_step(batch, 0).item()


def test_mask_of_a_row_does_not_depend_on_its_batch() -> None:
    """Two micro-batches of half the rows make the gradient of the whole."""
    policy = SHAPE.build()
    trained = module(policy)
    batch = first_batch(trained)

    def gradient(parts: list[slice]) -> Tensor:
        policy.zero_grad()
        for part in parts:
            cut = {name: value if name == "step" else value[part] for name, value in batch.items()}
            share = len(cut["prompt_id"]) / len(batch["prompt_id"])
            (trained.training_step(cut, 0) * share).backward()
        return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])

    whole = gradient([slice(0, 3)])
    assert whole.abs().max() > 1e-4
    torch.testing.assert_close(gradient([slice(0, 1), slice(1, 3)]), whole, atol=1e-6, rtol=1e-4)


@torch.no_grad()
def test_checkpoint_is_exported_and_loaded(tmp_path: Path) -> None:
    trained = module()
    fit(trained, 3, directory=tmp_path / "run")
    checkpoint = find_last_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    tokens = torch.tensor([[2, 3, 12, 1, 1, 0]])
    expected = trained.loaded_policy.logits(tokens)
    exported = export_checkpoint(checkpoint, tmp_path / "model")
    assert torch.equal(load_policy(exported).logits(tokens), expected)
    assert torch.equal(load_any_policy(checkpoint).logits(tokens), expected)
    plain = AutoModelForCausalLM.from_pretrained(exported)
    torch.testing.assert_close(plain(tokens).logits, expected, atol=1e-5, rtol=0)


def test_checkpoint_holds_what_the_policy_is(tmp_path: Path) -> None:
    trained = module()
    fit(trained, 1, directory=tmp_path)
    held = read_checkpoint(tmp_path / "last.ckpt")[POLICY_KEY]
    assert held["fingerprint"] == trained.loaded_policy.fingerprint


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (NewPolicy(characters="0123456789=+", hidden_size=16, num_layers=1, num_heads=2), "vocab_size"),
        (NewPolicy(characters="0123456789=", hidden_size=32, num_layers=1, num_heads=2), "hidden_size"),
    ],
)
def test_checkpoint_of_another_model_is_refused(tmp_path: Path, other: NewPolicy, difference: str) -> None:
    fit(module(), 1, directory=tmp_path)
    with pytest.raises(UserInputError, match=difference):
        fit(module(other), 2, resume=tmp_path / "last.ckpt")


def test_checkpoint_of_another_project_is_refused(tmp_path: Path) -> None:
    fit(module(), 1, directory=tmp_path)
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    del content[POLICY_KEY]
    torch.save(content, tmp_path / "foreign.ckpt")
    with pytest.raises(UserInputError, match="has no entry 'policy'"):
        fit(module(), 2, resume=tmp_path / "foreign.ckpt")


def test_training_goes_on_from_a_directory(tmp_path: Path) -> None:
    start = SHAPE.build()
    trained = module(str(export_policy(start, tmp_path / "model")))
    fit(trained, 1)
    again = module(start)
    fit(again, 1)
    assert torch.equal(weights(trained), weights(again))


def test_schedule_is_stepped_once_per_optimizer_step() -> None:
    trained = module(lr_scheduler=lambda optimizer: WarmupDecay(optimizer, total_steps=4, final_share=0.0))
    fit(trained, 2)
    (group,) = trained.optimizers().param_groups  # type: ignore[union-attr]
    assert group["lr"] == pytest.approx(0.5e-2)
