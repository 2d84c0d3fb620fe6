"""A resumed run is the uninterrupted one, also inside a rollout's updates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import (
    same,
    tiny_module,
    train,
)

from stabledrl.callbacks import GroupRollout, RunCheckpoint
from stabledrl.errors import UserInputError


def checkpointed(directory: Path, steps: int, accumulate: int, resume: Path | None = None, **options: Any) -> Any:
    """A run of 3 updates a rollout that leaves last.ckpt; returns that checkpoint."""
    module = tiny_module(kl_coefficient=0.1, lr_scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9))
    train(
        module,
        RunCheckpoint(dirpath=str(directory), every_n_train_steps=50),
        steps=steps,
        updates=3,
        accumulate=accumulate,
        ckpt_path=resume,
        **options,
    )
    return torch.load(directory / "last.ckpt", weights_only=True)


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_resumed_equals_uninterrupted(tmp_path: Path, accumulate: int) -> None:
    whole = checkpointed(tmp_path / "whole", 12, accumulate)
    checkpointed(tmp_path / "a", 7, accumulate)
    checkpointed(tmp_path / "b", 8, accumulate, tmp_path / "a" / "last.ckpt")  # 7 and 8: inside a rollout's updates
    twice = checkpointed(tmp_path / "c", 12, accumulate, tmp_path / "b" / "last.ckpt")
    once = checkpointed(tmp_path / "d", 12, accumulate, tmp_path / "a" / "last.ckpt")
    for resumed in (once, twice):
        for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
            assert same(whole[key], resumed[key]), key
        assert resumed_rollout(resumed) == resumed_rollout(whole)
        assert same(*(without_time(checkpoint["callbacks"]["GroupRollout"]) for checkpoint in (whole, resumed)))


def resumed_rollout(checkpoint: dict[str, Any]) -> int:
    return int(checkpoint["callbacks"]["GroupRollout"]["rollout_index"])


def without_time(state: dict[str, Any]) -> dict[str, Any]:
    metrics = {name: value for name, value in state["metrics"].items() if name != "rollout/tokens_per_second"}
    return {**state, "metrics": metrics}


def test_another_seed_is_refused_on_resume(tmp_path: Path) -> None:
    checkpointed(tmp_path, 2, 1)
    rollout = GroupRollout(group_size=4, updates_per_rollout=3, seed=1)
    with pytest.raises(UserInputError, match="seed 1 is not the checkpoint's 0"):
        train(tiny_module(), rollout=rollout, ckpt_path=tmp_path / "last.ckpt", steps=4)


def test_a_checkpoint_without_the_rollout_is_refused_inside_a_rollout(tmp_path: Path) -> None:
    checkpoint = checkpointed(tmp_path, 2, 1)
    del checkpoint["callbacks"]["GroupRollout"]
    torch.save(checkpoint, tmp_path / "cut.ckpt")
    module = tiny_module(kl_coefficient=0.1, lr_scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9))
    with pytest.raises(UserInputError, match="update 2 of rollout 0 is due"):
        train(module, steps=4, updates=3, ckpt_path=tmp_path / "cut.ckpt")


def test_another_seed_may_read_the_state_where_nothing_is_trained(tmp_path: Path) -> None:
    checkpoint = checkpointed(tmp_path, 2, 1)
    rollout = GroupRollout(group_size=4, updates_per_rollout=3, seed=1)
    rollout.load_state_dict(checkpoint["callbacks"]["GroupRollout"])
    assert rollout.seed == 1


def test_the_rollouts_metrics_are_known_to_monitors_after_a_resume_inside_it(tmp_path: Path) -> None:
    checkpointed(tmp_path / "a", 2, 1)
    monitored = RunCheckpoint(dirpath=str(tmp_path / "b"), every_n_train_steps=3, monitor="rollout/reward_mean")
    module = tiny_module(kl_coefficient=0.1, lr_scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9))
    trainer = train(module, monitored, steps=3, updates=3, ckpt_path=tmp_path / "a" / "last.ckpt")
    assert (tmp_path / "b" / "step-000003.ckpt").is_file()
    assert monitored.best_model_score == trainer.callback_metrics["rollout/reward_mean"]
