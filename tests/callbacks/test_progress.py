"""StepProgressBar counts optimizer steps."""

from pathlib import Path
from typing import Any

import pytest
from tests.training import tiny_module, train

from stabledrl.callbacks import RunCheckpoint, StepProgressBar


class Watched(StepProgressBar):
    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[int, int | None]] = []
        self.postfix: list[dict[str, Any]] = []

    def on_train_batch_end(self, *arguments: Any) -> None:
        super().on_train_batch_end(*arguments)
        self.shown.append((self.train_progress_bar.n, self.train_progress_bar.total))
        self.postfix.append(self.get_metrics(arguments[0], arguments[1]))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_counts_steps_of_max_steps_over_epochs(accumulate: int) -> None:
    bar = Watched()
    train(tiny_module(), bar, steps=6, updates=1, prompts=4, accumulate=accumulate, enable_progress_bar=True)
    assert bar.shown[accumulate - 1 :: accumulate] == [(step, 6) for step in range(1, 7)]  # an epoch has 2 rollouts


def test_shows_the_reward() -> None:
    bar = Watched()
    trainer = train(tiny_module(), bar, steps=2, updates=1, enable_progress_bar=True)
    assert bar.postfix[-1]["reward"] == pytest.approx(trainer.callback_metrics["rollout/reward_mean"].item(), abs=1e-3)
    assert "v_num" not in bar.postfix[-1]


def test_goes_on_from_the_resumed_step(tmp_path: Path) -> None:
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path)), steps=3)
    bar = Watched()
    train(tiny_module(), bar, steps=5, ckpt_path=tmp_path / "last.ckpt", enable_progress_bar=True)
    assert bar.shown == [(4, 5), (5, 5)]
    assert bar.train_progress_bar.initial == 3
