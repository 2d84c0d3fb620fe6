"""A reward that hangs, dies or raises costs its completion, not the run."""

import copy
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser
from tests.rewards import hostile

from stabledrl.errors import UserInputError
from stabledrl.protocols import RewardFunction
from stabledrl.rewards import CountdownEquation, Isolated, RewardError, ScoredCompletions, score_completions
from stabledrl.rewards.scoring import required_columns, reward_name, warm_up

LONG = 60.0


def score(reward: Any, *completions: str, chat: bool = False, **columns: list[Any]) -> ScoredCompletions:
    prompts: list[Any] = [[{"role": "user", "content": "say"}] if chat else "say"] * len(completions)
    columns = columns or {"gold": ["right"] * len(completions)}
    rows = [{name: own[index] for name, own in columns.items()} for index in range(len(completions))]
    return score_completions([reward], [1.0], prompts, completions, rows, completion_ids=[[1]] * len(completions))


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("reward", [hostile.follow, hostile.Obeying()], ids=["function", "grader"])
def test_what_hangs_is_killed_at_the_deadline_and_replaced(reward: Any, chat: bool) -> None:
    own = Isolated(reward, deadline=1)
    score(Isolated(reward), "right")
    started = time.perf_counter()
    scored = score(own, "right", "hang", "wrong", "right", chat=chat)
    assert time.perf_counter() - started < 20
    assert scored.rewards == [1.0, None, 0.0, 1.0]
    assert scored.grades[1].correct is None
    assert "no verdict within 1 s" in scored.grades[1].reason
    assert score(own, "right", "wrong").rewards == [1.0, 0.0]


def test_what_dies_costs_its_completion_alone() -> None:
    scored = score(Isolated(hostile.follow, deadline=LONG), "right", "die", "wrong")
    assert scored.rewards == [1.0, None, 0.0]
    assert scored.grades[1].reason == "follow its process died with signal 9"


def test_what_raises_stops_the_run_with_its_sample_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RewardError, match=r"reward follow raised KeyError: 'sulphur' on sample 1: 'raise'"):
        score(Isolated(hostile.follow, deadline=LONG), "right", "raise")
    assert "in _obey" in caplog.text


def test_what_raises_can_be_skipped_instead() -> None:
    scored = score(Isolated(hostile.follow, deadline=LONG, on_error="skip"), "right", "raise", "wrong")
    assert scored.rewards == [1.0, None, 0.0]
    assert scored.grades[1].reason == "follow raised KeyError: 'sulphur'"


@pytest.mark.parametrize("text", ["none", "nan"])
def test_missing_values_stay_missing(text: str) -> None:
    assert score(Isolated(hostile.follow, deadline=LONG), text, "right").rewards == [None, 1.0]


def test_values_of_the_wrong_kind_or_number_name_the_reward() -> None:
    with pytest.raises(UserInputError, match="follow returned 'good'"):
        score(Isolated(hostile.follow, deadline=LONG), "word")
    with pytest.raises(UserInputError, match="one_too_many returned 2 values for 1 completions"):
        score(Isolated(hostile.one_too_many, deadline=LONG), "a", "b")


def test_a_reward_that_compares_completions_can_have_them_all_in_one_call() -> None:
    assert score(Isolated(hostile.rank, deadline=LONG, one_by_one=False), "c", "a", "b").rewards == [2, 0, 1]
    assert score(Isolated(hostile.rank, deadline=LONG), "c", "a", "b").rewards == [0, 0, 0]
    scored = score(Isolated(hostile.follow, deadline=0.5, one_by_one=False), "right", "hang")
    assert scored.rewards == [None, None]


def test_several_workers_share_a_batch_and_a_batch_has_a_deadline() -> None:
    own = Isolated(hostile.follow, deadline=LONG, workers=2)
    assert score(own, *["right"] * 6).rewards == [1.0] * 6
    own.batch_deadline = 3
    scored = score(own, "hang", "right", "hang", "right")
    assert scored.rewards == [None, 1.0, None, None]
    assert "batch took longer than 3 s" in scored.grades[3].reason


def test_coroutine_functions_and_graders_with_settings_run_too() -> None:
    assert score(Isolated(hostile.later, deadline=LONG), "1", "2").rewards == [1.0, 0.0]
    assert score(Isolated(hostile.Obeying(worth=0.5), deadline=LONG), "right").rewards == [0.5]
    numbers: dict[str, list[Any]] = {"numbers": [[3, 4]], "target": [7]}
    grades = score(Isolated(CountdownEquation("bare"), deadline=LONG), "3+4", **numbers).grades
    assert [(grade.answer, grade.reason) for grade in grades] == [("3+4", "reaches the target")]


def test_it_goes_by_the_name_and_the_columns_of_the_reward_inside() -> None:
    assert reward_name(Isolated(hostile.follow)) == "follow"
    assert required_columns(Isolated(hostile.follow)) == {"gold"}
    assert required_columns(Isolated(CountdownEquation())) == {"numbers", "target"}


def test_in_trl_convention_it_says_the_same() -> None:
    own = Isolated(hostile.follow, deadline=LONG)
    assert own(prompts=["", ""], completions=["right", "wrong"], gold=["right"] * 2) == [1.0, 0.0]


def test_copies_have_processes_of_their_own() -> None:
    own = Isolated(hostile.follow, deadline=LONG)
    warm_up([own, hostile.follow])
    for other in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert score(other, "right").rewards == [1.0]
        assert other._pool is not own._pool


def test_yaml_names_the_reward_by_its_path(tmp_path: Path) -> None:
    parser = ArgumentParser()
    parser.add_argument("--rewards", type=list[RewardFunction])
    parser.add_argument("-c", action="config")
    (tmp_path / "rewards.yaml").write_text(
        "rewards:\n"
        "  - class_path: stabledrl.rewards.Isolated\n"
        "    init_args: {reward: tests.rewards.hostile.follow, deadline: 60, on_error: skip}\n"
        "  - class_path: stabledrl.rewards.Isolated\n"
        "    init_args:\n"
        "      reward: {class_path: tests.rewards.hostile.Obeying, init_args: {worth: 0.5}}\n"
        "  - tests.rewards.hostile.length\n"
    )
    rewards = parser.instantiate(parser.parse_args(["-c", str(tmp_path / "rewards.yaml")])).rewards
    assert [reward_name(reward) for reward in rewards] == ["follow", "Obeying", "length"]
    assert [score(reward, "right", "raise" if reward is rewards[0] else "no").rewards for reward in rewards] == [
        [1.0, None],
        [0.5, 0.0],
        [5.0, 2.0],
    ]


def test_a_module_that_cannot_be_imported_in_a_process_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "only_here.py").write_text(
        f"import os\nif os.getpid() != {os.getpid()}:\n    raise ImportError('no GPU')\ndef judge(completions): ...\n"
    )
    import only_here  # type: ignore[import-not-found]

    with pytest.raises(RewardError, match="reward judge: its process cannot start, ImportError: no GPU"):
        score(Isolated(only_here.judge), "a")
    assert "only_here.py" in caplog.text


def test_rewards_that_no_process_could_import_are_refused() -> None:
    with pytest.raises(UserInputError, match="importable from a module"):
        Isolated(lambda completions: [0.0])


@pytest.mark.parametrize("options", [{"deadline": 0}, {"batch_deadline": 0}, {"workers": 0}])
def test_limits_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserInputError, match=next(iter(options))):
        Isolated(hostile.follow, **options)
