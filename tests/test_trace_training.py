"""TraceRL on a block-diffusion policy: sampler, masks by trace, ratio per token, through a real trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.training import LENGTH, Recorder, small_digits, tiny_module, tiny_policy, train

from stabledrl.cli import main
from stabledrl.likelihoods import StaircaseElbo
from stabledrl.objectives import DMPO, TraceRL
from stabledrl.samplers import BlockDiffusionSampler

ROOT = Path(__file__).parent.parent
SIZE = 2
TRACE = StaircaseElbo(block_size=SIZE, draws=SIZE, masking="trace", eubo_beta=None)


def traced_module(**options: Any) -> Any:
    defaults: dict[str, Any] = {
        "policy": tiny_policy(block_size=SIZE),
        "objective": TraceRL(),
        "sampler": BlockDiffusionSampler(LENGTH, SIZE, LENGTH),
        "likelihood": TRACE,
    }
    return tiny_module(**{**defaults, **options})


def test_every_tokens_ratio_is_one_at_the_first_update_of_a_rollout_and_not_at_the_second() -> None:
    recorder = Recorder()
    train(traced_module(), recorder, steps=4, updates=2)
    for first in (0, 2):
        for name in ("log_ratio_mean", "log_ratio_std", "log_ratio_max", "kl_old"):
            assert recorder.metrics[first][f"train/{name}"] == pytest.approx(0, abs=1e-5)
        assert recorder.metrics[first + 1]["train/log_ratio_std"] > 1e-4
        assert recorder.metrics[first + 1]["train/kl_old"] > 0
    assert sum(float(part.abs().sum()) for part in recorder.gradients[0]) > 0


def test_the_rollouts_old_shares_are_the_log_probabilities_in_the_states_of_its_own_steps() -> None:
    recorder, module = Recorder(), traced_module()
    train(module, recorder, steps=1, updates=1)
    policy = tiny_policy(block_size=SIZE)  # the one that sampled
    rollouts = recorder.batches[0]["rollouts"]
    sequences, shares = rollouts.sequences, rollouts.old.token_elbo
    for row, place in sequences.completion_mask.nonzero().tolist():
        real = sequences.attention_mask[row]
        tokens, steps = sequences.token_ids[row][real], sequences.step_map[row]
        prompt = len(tokens) - LENGTH
        state = tokens.clone()
        state[prompt:][(steps >= steps[place]) | (steps < 0)] = policy.vocabulary.mask_token_id
        end = ((prompt + place) // SIZE + 1) * SIZE
        with torch.no_grad():
            log_probs = policy.logits(state[None, :end])[0, prompt + place].log_softmax(dim=-1)
        assert float(shares[row, place]) == pytest.approx(float(log_probs[tokens[prompt + place]]), abs=1e-5)


@pytest.mark.parametrize("objective", [TraceRL(), DMPO()], ids=lambda objective: type(objective).__name__)
def test_a_block_diffusion_policy_learns_by_its_traces(objective: Any) -> None:
    recorder = Recorder()
    train(traced_module(objective=objective), recorder, steps=60, prompts=4, group_size=8)
    rewards = [metrics["rollout/reward_mean"] for metrics in recorder.metrics]
    assert small_digits([], ["0" * LENGTH]) == [1.0]
    assert rewards[0] < 0.6
    assert rewards[-1] > 0.9


@pytest.mark.parametrize("accumulate", [2, 4])
def test_micro_batches_that_split_groups_leave_the_gradient(accumulate: int) -> None:
    for objective in (TraceRL(), DMPO()):
        gradients = []
        for parts in (1, accumulate):
            recorder = Recorder()
            train(traced_module(objective=objective), recorder, steps=1, updates=1, group_size=4, accumulate=parts)
            gradients.append(torch.cat([part.flatten() for part in recorder.gradients[0]]))
        torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-4)
        assert gradients[0].norm() > 1e-3


def test_the_configuration_keeps_the_likelihood_of_the_run_that_it_is_laid_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    files = ["-c", "configs/recipe/tiny_block.yaml", "-c", "configs/objective/trace_rl.yaml"]
    sizes = ["--trainer.max_steps=1", "--data.prompts_per_rollout=2", "--rollout.group_size=4"]
    quiet = ["--evaluation.every_n_steps=null", "--evaluation.at_start=false", "--trainer.enable_progress_bar=false"]
    assert main(["fit", *files, *sizes, *quiet, f"--trainer.default_root_dir={tmp_path}"]) == 0
    ran = yaml.safe_load((tmp_path / "logs/tiny-block/version_0/config.yaml").read_text())
    likelihood = ran["model"]["init_args"]["likelihood"]
    assert likelihood["class_path"].endswith("StaircaseElbo")
    assert likelihood["init_args"].items() >= {"block_size": 4, "masking": "trace", "draws": 4}.items()
