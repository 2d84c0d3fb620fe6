import pickle
from typing import Any

import pytest

from stabledrl.data import ReasoningGym
from stabledrl.data.reasoning_gym import ReasoningGymVerifier
from stabledrl.errors import UserInputError

pytest.importorskip("reasoning_gym")

GENERATORS: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 3},
    "leg_counting": {},
    "gcd": {},
    "prime_factorization": {},
    "string_manipulation": {},
}


def make(generator: str = "chain_sum", **settings: Any) -> ReasoningGym:
    options = {"options": GENERATORS.get(generator), "train_size": 60, "evaluation_size": 20, **settings}
    return ReasoningGym(generator, **options)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("style", ["compact", "instruction"])
def test_gold_answers_are_right_and_others_are_not(generator: str, style: str) -> None:
    task = make(generator, prompt_style=style)
    (verifier,) = task.rewards
    assert isinstance(verifier, ReasoningGymVerifier)
    for row in task.rows("train")[:10]:
        shown = row["answer"] if style == "compact" else f"I think <answer>{row['answer']}</answer>"
        assert verifier.grade(shown, **row).correct, row
        wrong = verifier.grade("surely not" if style == "compact" else "<answer>surely not</answer>", **row)
        assert wrong.correct is False
        assert wrong.score is not None
        assert wrong.score < 0.5


def test_a_completion_without_tags_scores_nothing() -> None:
    task = make()
    row = task.rows("train")[0]
    verdict = task.rewards[0].grade(row["answer"], **row)  # type: ignore[union-attr]
    assert (verdict.correct, verdict.score, verdict.answer) == (False, 0.0, None)


@pytest.mark.parametrize("generator", ["chain_sum", "gcd"])
def test_no_training_item_asks_what_a_held_out_one_asks(generator: str) -> None:
    small = {"chain_sum": {"min_digits": 1, "max_digits": 1, "min_terms": 2, "max_terms": 2}, "gcd": {"max_value": 20}}
    held_out = {row["question"] for row in make(generator, options=small[generator]).rows("evaluation")}
    assert len(held_out) == 20
    for seed in range(4):
        task = make(generator, options=small[generator], seed=seed)
        assert {row["question"] for row in task.rows("evaluation")} == held_out
        assert not held_out & {row["question"] for row in task.rows("train")}


def test_training_items_depend_on_the_seed_alone() -> None:
    assert make(seed=1).rows("train") == make(seed=1).rows("train")
    assert make(seed=1).rows("train") != make(seed=2).rows("train")


def test_prompt_is_the_question_or_a_chat_around_it() -> None:
    row = make(prompt_style="compact").rows("train")[0]
    assert row["prompt"] == row["question"]
    (message,) = make().rows("train")[0]["prompt"]
    assert message["content"].startswith(make().rows("train")[0]["question"])
    assert "<answer>" in message["content"]


def test_an_answer_the_verifier_cannot_read_is_wrong_and_a_broken_verifier_has_no_verdict() -> None:
    verifier = ReasoningGymVerifier("prime_factorization", answer_format="bare")
    row = make("prime_factorization").rows("train")[0]
    verdict = verifier.grade("many", **row)
    assert (verdict.correct, verdict.score) == (False, 0.0)
    assert "raised ValueError" in verdict.reason
    verdict = verifier.grade("many", **{**row, "answer": "none"})
    assert (verdict.correct, verdict.score) == (None, None)


@pytest.mark.parametrize("generator", GENERATORS)
def test_verifiers_can_be_sent_to_another_process(generator: str) -> None:
    row = make(generator).rows("train")[0]
    copy = pickle.loads(pickle.dumps(ReasoningGymVerifier(generator, GENERATORS[generator], answer_format="bare")))
    assert copy.grade("surely not", **row).correct is False
    assert copy.answer_format == "bare"


def test_sizes_beyond_what_a_generator_asks_are_refused() -> None:
    few = {"min_digits": 1, "max_digits": 1, "min_terms": 2, "max_terms": 2}
    with pytest.raises(UserInputError, match="distinct questions in 10000, fewer than the 500 asked for evaluation"):
        make(options=few, evaluation_size=500).rows("evaluation")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"generator": "chain_sums"}, "no generator 'chain_sums'; did you mean chain_sum"),
        ({"generator": "zzz"}, "no generator 'zzz'; it has"),
        ({"options": {"min_term": 2}}, "chain_sum refuses the options .*min_term"),
        ({"options": {"min_terms": 9, "max_terms": 2}}, "chain_sum refuses the options"),
        ({"options": {"seed": 3}}, "options must not hold seed"),
        ({"train_size": 0}, "train_size 0"),
        ({"seed": -1}, "seed -1"),
    ],
)
def test_impossible_settings_are_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        make(**{"generator": "chain_sum", **settings})


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    with pytest.raises(UserInputError, match=r"pip install 'stabledrl\[gym\]'"):
        make()
