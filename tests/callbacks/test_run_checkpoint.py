"""RunCheckpoint: whatever ends the run, its last step can be resumed, and the disk holds what was asked for."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training import Digits, Scripted, level, same, tiny_module, train, weights

from stabledrl.callbacks import (
    GradientSpikeMonitor,
    PolicyDriftMonitor,
    RewardCollapseMonitor,
    RunCheckpoint,
    SampleTable,
    TaskEvaluation,
)
from stabledrl.checkpoints import find_last_checkpoint, read_checkpoint
from stabledrl.errors import UserInputError


def saved(path: Path) -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(path, weights_only=True)
    return checkpoint


def steps_of(directory: Path) -> list[int]:
    """Steps that are kept, each of them checked against what is in the file."""
    found = sorted(directory.glob("step-*.ckpt"))
    steps = [saved(path)["global_step"] for path in found]
    assert [path.name for path in found] == [f"step-{step:06d}.ckpt" for step in steps]
    assert {path.name for path in directory.iterdir()} == {"last.ckpt", *(path.name for path in found)}
    return steps


@pytest.mark.parametrize(("every", "steps"), [(2, 5), (2, 4), (100, 3), (1, 2)])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_last_is_the_end_of_the_run(tmp_path: Path, every: int, steps: int, accumulate: int) -> None:
    module = tiny_module()
    checkpoint = RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=every)
    train(module, checkpoint, steps=steps, accumulate=accumulate)
    last = saved(tmp_path / "last.ckpt")
    assert last["global_step"] == steps
    assert same(last["state_dict"], weights(module))


@pytest.mark.parametrize(("keep", "expected"), [(1, [5]), (2, [4, 5]), (3, [2, 4, 5]), (9, [2, 4, 5]), (-1, [2, 4, 5])])
def test_keeps_as_many_of_the_newest_as_asked_for(tmp_path: Path, keep: int, expected: list[int]) -> None:
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=2, keep_last=keep), steps=5)
    assert steps_of(tmp_path) == expected


def scripted(*means: float) -> dict[str, Any]:
    return {"tasks": [Digits(Scripted(*map(level, means)))], "steps": len(means), "updates": 1}


@pytest.mark.parametrize(
    ("mode", "best", "expected"),
    [("max", 1, [2, 6]), ("max", 2, [2, 4, 6]), ("max", 0, [6]), ("min", 1, [1, 6]), ("min", 2, [1, 5, 6])],
)
def test_keeps_the_best_besides_the_newest_and_the_earlier_of_equals(
    tmp_path: Path, mode: str, best: int, expected: list[int]
) -> None:
    checkpoint = RunCheckpoint(
        dirpath=str(tmp_path), every_n_train_steps=1, monitor="rollout/reward_mean", keep_best=best, mode=mode
    )
    train(tiny_module(), checkpoint, **scripted(0.1, 0.9, 0.5, 0.8, 0.2, 0.8))
    assert steps_of(tmp_path) == expected
    if best:
        assert Path(checkpoint.best_model_path).name == f"step-{2 if mode == 'max' else 1:06d}.ckpt"
        assert checkpoint.best_model_score == pytest.approx(0.9 if mode == "max" else 0.1)
    assert saved(tmp_path / "last.ckpt")["global_step"] == 6


def test_what_has_no_score_is_saved_all_the_same_and_is_never_the_best(tmp_path: Path) -> None:
    checkpoint = RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=1, monitor="val/digits/reward", keep_last=-1)
    train(tiny_module(), checkpoint, steps=3)
    assert steps_of(tmp_path) == [1, 2, 3]
    assert checkpoint.best_model_score is None


@pytest.mark.parametrize("every", [1, 100])
def test_the_last_has_the_score_of_the_evaluation_at_the_end(tmp_path: Path, every: int) -> None:
    checkpoint = RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=every, monitor="val/digits/reward")
    evaluation = TaskEvaluation(at_start=False)
    train(tiny_module(), evaluation, checkpoint, steps=3)
    assert steps_of(tmp_path) == [3]
    assert checkpoint.best_model_score == pytest.approx(evaluation.last["val/digits/reward"])


def test_last_takes_no_space_of_its_own(tmp_path: Path) -> None:
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=1), steps=3)
    assert (tmp_path / "last.ckpt").samefile(tmp_path / "step-000003.ckpt")


def test_where_files_have_no_second_names_last_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError("not supported")

    monkeypatch.setattr("os.link", refuse)
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=1), steps=3)
    assert steps_of(tmp_path) == [3]
    assert (tmp_path / "last.ckpt").read_bytes() == (tmp_path / "step-000003.ckpt").read_bytes()


def test_the_disk_that_checkpoints_need_is_told_at_the_start_and_is_about_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoint = RunCheckpoint(dirpath=str(tmp_path), keep_last=2, monitor="rollout/reward_mean", keep_best=3)
    told: list[str] = []
    monkeypatch.setattr("stabledrl.callbacks.run_checkpoint.rank_zero_info", told.append)
    train(tiny_module(), checkpoint, steps=1)
    (line,) = told
    assert "at most 6 at a time (2 newest, 3 best, 1 being written)" in line
    stated = float(line.split("about ")[1].split(" kB")[0]) * 1e3
    weights_and_states = sum(
        tensor.numel() * tensor.element_size()
        for tensor in torch.utils._pytree.tree_leaves(
            [saved(tmp_path / "last.ckpt")[name] for name in ("state_dict", "optimizer_states")]
        )
        if isinstance(tensor, torch.Tensor)
    )
    assert stated == pytest.approx(weights_and_states, rel=0.01)


@pytest.mark.parametrize(("free", "warned"), [(10**5, True), (10**9, False)])
def test_a_disk_that_is_too_small_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, free: int, warned: bool
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path), keep_last=20), steps=1)
    assert any("will be full" in record.message for record in caplog.records) == warned


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_n_train_steps": 0}, "every_n_train_steps 0 must be at least 1"),
        ({"keep_last": 0}, "keep_last 0 must be at least 1, or -1 for all"),
        ({"keep_last": -2}, "keep_last -2"),
        ({"keep_best": -1}, "keep_best -1 must be at least 0"),
        ({"mode": "best"}, "mode 'best' is not one of min, max"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        RunCheckpoint(**options)


def test_weights_only_leaves_out_the_rest(tmp_path: Path) -> None:
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path), save_weights_only=True), steps=1)
    checkpoint = saved(tmp_path / "last.ckpt")
    assert "state_dict" in checkpoint
    assert "policy" in checkpoint
    assert not {"optimizer_states", "lr_schedulers", "callbacks"} & checkpoint.keys()


def test_a_run_resumes_with_another_interval(tmp_path: Path) -> None:
    train(tiny_module(), RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=2), steps=2)
    again = RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=3)
    train(tiny_module(), again, steps=4, ckpt_path=tmp_path / "last.ckpt")
    assert saved(tmp_path / "last.ckpt")["global_step"] == 4


def test_a_run_resumed_in_its_directory_keeps_as_many_as_before_and_its_best(tmp_path: Path) -> None:
    def part(*means: float, steps: int, resume: Path | None = None) -> None:
        checkpoint = RunCheckpoint(
            dirpath=str(tmp_path), every_n_train_steps=1, monitor="rollout/reward_mean", keep_last=2
        )
        train(tiny_module(), checkpoint, ckpt_path=resume, **{**scripted(*means), "steps": steps})

    part(0.1, 0.9, 0.2, steps=3)
    part(0.3, 0.4, steps=5, resume=tmp_path / "last.ckpt")
    assert steps_of(tmp_path) == [2, 4, 5]


def test_a_run_resumed_elsewhere_removes_nothing_of_the_one_before(tmp_path: Path) -> None:
    for name, steps, resume in (("a", 2, None), ("b", 4, tmp_path / "a" / "last.ckpt")):
        checkpoint = RunCheckpoint(dirpath=str(tmp_path / name), every_n_train_steps=1)
        train(tiny_module(), checkpoint, steps=steps, ckpt_path=resume)
    assert (steps_of(tmp_path / "a"), steps_of(tmp_path / "b")) == ([2], [4])


def test_a_rollbacks_state_is_never_what_a_run_goes_on_from(tmp_path: Path) -> None:
    monitor = RewardCollapseMonitor(window=1, action="rollback", save_every_n_rollouts=1)
    checkpoint = RunCheckpoint(dirpath=str(tmp_path), every_n_train_steps=2)
    train(tiny_module(), monitor, checkpoint, **{**scripted(0.5), "steps": 3})
    found = find_last_checkpoint(tmp_path)
    assert found == tmp_path / "last.ckpt"
    (tmp_path / "healthy.ckpt").touch()  # the newest of all
    assert find_last_checkpoint(tmp_path) == found
    assert read_checkpoint(tmp_path / "healthy.ckpt")["global_step"] == 3


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_callbacks_state_after_a_resume_is_the_uninterrupted_runs(tmp_path: Path, accumulate: int) -> None:
    def part(name: str, steps: int, resume: str | None = None) -> dict[str, Any]:
        callbacks = [
            TaskEvaluation(every_n_steps=5),
            GradientSpikeMonitor(),
            RewardCollapseMonitor(window=2),
            PolicyDriftMonitor(),
            SampleTable(),
            RunCheckpoint(dirpath=str(tmp_path / name)),
        ]
        path = None if resume is None else tmp_path / resume / "last.ckpt"
        options: dict[str, Any] = {"accumulate": accumulate, "ckpt_path": path, "default_root_dir": tmp_path}
        train(tiny_module(), *callbacks, steps=steps, updates=3, **options)
        states: dict[str, Any] = saved(tmp_path / name / "last.ckpt")["callbacks"]
        states["GroupRollout"]["metrics"].pop("rollout/tokens_per_second")
        del states["RunCheckpoint"]  # names the directories
        return states

    whole = part("whole", 12)
    part("a", 5)  # a step of the interval, which the interrupted run evaluates as its last
    part("b", 8, "a")
    resumed = part("c", 12, "b")
    assert (
        whole.keys()
        == resumed.keys()
        == {
            "GroupRollout",
            "TaskEvaluation",
            "GradientSpikeMonitor",
            "RewardCollapseMonitor",
            "PolicyDriftMonitor",
            "SampleTable",
        }
    )
    for name in whole:
        assert same(whole[name], resumed[name]), name
