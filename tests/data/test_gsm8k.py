from pathlib import Path

import pytest

from stabledrl.data import GSM8K
from stabledrl.data.gsm8k import parse_gold
from stabledrl.errors import UserInputError
from stabledrl.rewards import FormatTags, MathAnswer

LOCAL = str(Path(__file__).parent / "files" / "gsm8k")


@pytest.mark.parametrize(
    ("solution", "gold"),
    [
        ("a <<6*12=72>>72\n#### 72", "72"),
        ("#### 1,300", "1300"),
        ("#### 1,234,567 ", "1234567"),
        ("#### -5", "-5"),
        ("#### $11", "11"),
        ("#### 2.5", "2.5"),
        ("#### .5", ".5"),
        ("#### 1\nno, 2\n#### 2", "2"),
        ("####72", "72"),
        ("no marker 72", None),
        ("#### ", None),
        ("#### many", None),
        ("#### 72 and more", None),
    ],
)
def test_gold_is_the_number_after_the_last_marker(solution: str, gold: str | None) -> None:
    assert parse_gold(solution) == gold


def test_both_splits_are_read_and_do_not_meet() -> None:
    task = GSM8K(LOCAL)
    train, held_out = task.rows("train"), task.rows("evaluation")
    assert (len(train), len(held_out)) == (12, 4)
    assert not {row["problem"] for row in train} & {row["problem"] for row in held_out}
    assert [row["answer"] for row in held_out] == ["5", "120", "150", "1000"]
    assert task.rows("train") is train


@pytest.mark.parametrize("style", ["compact", "instruction"])
def test_demonstrations_are_graded_right_and_others_wrong(style: str) -> None:
    task = GSM8K(LOCAL, prompt_style=style)
    (grader,) = task.rewards
    assert isinstance(grader, MathAnswer)
    for row in task.rows("train"):
        assert grader.grade(row["completion"], **row).correct
        assert not grader.grade(row["completion"].replace(row["answer"], "31"), **row).correct


def test_instruction_is_a_chat_that_asks_for_tags_and_compact_is_text() -> None:
    (message,) = GSM8K(LOCAL).rows("train")[0]["prompt"]
    assert message["role"] == "user"
    assert message["content"].startswith("Ann has 3 pens.")
    assert "<answer>" in message["content"]
    assert GSM8K(LOCAL, prompt_style="compact").rows("train")[0]["prompt"].endswith("now?\nAnswer: ")
    own = GSM8K(LOCAL, prompt_style="compact", template="Q {problem} A").rows("train")[0]["prompt"]
    assert own == "Q Ann has 3 pens. She buys 4. How many now? A"


def test_sizes_take_rows_from_the_start() -> None:
    task = GSM8K(LOCAL, train_size=3, evaluation_size=2)
    assert task.rows("train") == GSM8K(LOCAL).rows("train")[:3]
    assert len(task.rows("evaluation")) == 2


def test_rewards_of_the_user_replace_the_grader() -> None:
    task = GSM8K(LOCAL, rewards=[MathAnswer(), FormatTags()], reward_weights=[1.0, 0.25])
    assert [type(reward) for reward in task.rewards] == [MathAnswer, FormatTags]
    assert task.reward_weights == [1.0, 0.25]


def test_files_name_their_held_out_rows_themselves() -> None:
    train, test = f"{LOCAL}/main/train.jsonl", f"{LOCAL}/main/test.jsonl"
    assert GSM8K(train, test).rows("evaluation") == GSM8K(LOCAL).rows("evaluation")
    with pytest.raises(UserInputError, match="name the held-out ones by evaluation_source"):
        GSM8K(train)


def test_rows_without_gold_are_dropped_with_a_count_and_refused_if_all_are(tmp_path: Path) -> None:
    good, bad = '{"question": "1?", "answer": "#### 1"}\n', '{"question": "2?", "answer": "two"}\n'
    (tmp_path / "some.jsonl").write_text(good + bad + bad)
    (tmp_path / "none.jsonl").write_text(bad)
    task = GSM8K(str(tmp_path / "some.jsonl"), str(tmp_path / "none.jsonl"))
    with pytest.warns(UserWarning, match="2 of 3 rows dropped, without a gold answer"):
        assert len(task.rows("train")) == 1
    with pytest.raises(UserInputError, match="no row left of 1 after the filter 'has a gold answer'"):
        task.rows("evaluation")


@pytest.mark.parametrize("settings", [{"train_size": 0}, {"evaluation_size": -1}, {"template": "no place"}])
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UserInputError, match=next(iter(settings))):
        GSM8K(LOCAL, **settings)
    with pytest.raises(UserInputError, match="rewards is empty"):
        GSM8K(LOCAL, rewards=[])
