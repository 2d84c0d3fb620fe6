"""Block-diffusion policies train from demonstrations and from rewards."""

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.recipe import read_curves
from tests.training import LENGTH, Recorder, tiny_module, tiny_policy, train

from stabledrl.backbones import NewPolicy
from stabledrl.cli import main
from stabledrl.errors import UserInputError
from stabledrl.export import export_policy
from stabledrl.likelihoods import MonteCarloElbo, StaircaseElbo
from stabledrl.samplers import BlockDiffusionSampler, SemiAutoregressiveSampler
from stabledrl.sft import SupervisedModule

ROOT = Path(__file__).parent.parent
ACCURACY = "val/sudoku/accuracy"


def block_module(size: int = 2, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "policy": tiny_policy(block_size=size),
        "sampler": BlockDiffusionSampler(LENGTH, size, LENGTH),
        "likelihood": StaircaseElbo(block_size=size),
    }
    return tiny_module(**{**defaults, **options})


def test_a_block_causal_policy_trains_on_rewards_and_its_ratio_is_one_at_first() -> None:
    assert LENGTH % 2 == 0
    recorder = Recorder()
    module = block_module(likelihood=StaircaseElbo(block_size=2, share_masks=True))
    train(module, recorder, steps=2)
    assert recorder.metrics[0]["train/log_ratio_std"] == pytest.approx(0, abs=1e-5)
    assert recorder.metrics[1]["train/log_ratio_std"] > 1e-5
    assert sum(float(part.abs().sum()) for part in recorder.gradients[0]) > 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sampler": BlockDiffusionSampler(4 * LENGTH, 4, 4 * LENGTH)}, "BlockDiffusionSampler has block_size 4"),
        ({"likelihood": StaircaseElbo(block_size=4)}, "StaircaseElbo has block_size 4"),
        ({"sampler": SemiAutoregressiveSampler(LENGTH, LENGTH, LENGTH)}, "SemiAutoregressiveSampler is made for full"),
        ({"likelihood": MonteCarloElbo()}, "MonteCarloElbo is made for full"),
        ({"policy": tiny_policy()}, "BlockDiffusionSampler has block_size 2"),
    ],
)
def test_parts_made_for_another_attention_are_refused_before_training(
    options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    policy = options.pop("policy", None) or tiny_policy(block_size=2)
    for source in (policy, str(export_policy(policy, tmp_path / "model"))):
        recorder = Recorder()
        with pytest.raises(UserInputError, match=told):
            train(block_module(**{**options, "policy": source}), recorder)
        assert recorder.batches == []


@pytest.mark.parametrize(("block_size", "likelihood"), [(2, MonteCarloElbo()), (None, StaircaseElbo(block_size=2))])
def test_supervised_training_refuses_an_estimator_made_for_another_attention(
    block_size: int | None, likelihood: Any
) -> None:
    module = SupervisedModule(policy=NewPolicy(block_size=block_size), likelihood=likelihood)
    with pytest.raises(UserInputError, match=type(likelihood).__name__):
        module.configure_model()


@pytest.mark.slow
def test_the_recipe_teaches_a_block_causal_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    options = [f"--trainer.default_root_dir={tmp_path}", "--trainer.max_steps=60", "--evaluation.every_n_steps=60"]
    threads = torch.get_num_threads()
    assert main(["fit", "-c", "configs/recipe/tiny_block.yaml", *options]) == 0
    torch.set_num_threads(threads)
    accuracy = [value for _, value in read_curves(tmp_path / "logs" / "tiny-block" / "version_0")[ACCURACY]]
    assert accuracy[-1] >= accuracy[0] + 0.2
