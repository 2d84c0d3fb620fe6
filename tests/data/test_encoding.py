import re
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from stabledrl.data.encoding import check_columns, encode_prompt, encode_rows, encode_text, special_ids
from stabledrl.errors import UserInputError
from stabledrl.grade import RewardFunction
from stabledrl.protocols import Task
from stabledrl.rewards import CountdownEquation, SudokuGrid

SPELLINGS = ["<|end|>", "<|mask|>", "<|start|>"]
TEXTS = [
    text for token in SPELLINGS for text in (token, f"a{token}b", f"{token}{token}", f"<{token}>", f"{token[:-1]}")
]


class Rows(Task):
    """A task made of given rows."""

    def __init__(self, rows: list[dict[str, Any]], rewards: list[RewardFunction] | None = None) -> None:
        self.name = "rows"
        self.rewards: list[RewardFunction] = [CountdownEquation()] if rewards is None else rewards
        self.reward_weights = [1.0] * len(self.rewards)
        self._rows = rows

    def rows(self, split: str) -> list[dict[str, Any]]:
        return self._rows


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    found = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(found, int)
    return found


def special(tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    return special_ids(tokenizer, [token_id(tokenizer, "<|mask|>")])


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def ordinary(tokenizer: PreTrainedTokenizerFast, chat: list[dict[str, str]]) -> list[int]:
    """The chat as the model was trained to see it."""
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(rendered, add_special_tokens=False).input_ids
    return ids


@pytest.mark.parametrize("text", TEXTS)
def test_special_tokens_spelled_in_text_are_characters(any_tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = encode_text(any_tokenizer, text, special(any_tokenizer))
    assert not special(any_tokenizer) & set(ids)
    assert any_tokenizer.decode(ids) == text


@pytest.mark.parametrize("text", TEXTS)
def test_special_tokens_spelled_in_chats_are_characters(any_tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    chat = [{"role": "system", "content": "solve"}, *user(text)]
    ids = encode_prompt(any_tokenizer, chat, special(any_tokenizer))
    start, end = token_id(any_tokenizer, "<|start|>"), token_id(any_tokenizer, "<|end|>")
    assert [token for token in ids if token in special(any_tokenizer)] == [start, end, start, end, start]
    assert any_tokenizer.decode(ids) == f"<|start|>system\nsolve<|end|><|start|>user\n{text}<|end|><|start|>assistant\n"


@pytest.mark.parametrize("text", ["solve 0123=", "  solve 0123= \n", "<|en d|> | mask", "<"])
def test_ordinary_chats_are_encoded_as_a_whole(any_tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    chat = [{"role": "system", "content": "solve this"}, *user(text)]
    assert encode_prompt(any_tokenizer, chat, special(any_tokenizer)) == ordinary(any_tokenizer, chat)


def test_ordinary_text_gets_no_tokens_around_it(any_tokenizer: PreTrainedTokenizerFast) -> None:
    expected = any_tokenizer("0123=", add_special_tokens=False).input_ids
    assert encode_prompt(any_tokenizer, "0123=", special(any_tokenizer)) == expected


def test_spelled_unknown_token_is_characters(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.add_special_tokens({"unk_token": "<|unk|>"})
    ids = encode_text(tokenizer, "<|unk|>")
    assert len(ids) == len("<|unk|>")
    assert tokenizer.unk_token_id not in ids


def test_white_space_that_the_template_trims_stays_trimmed_beside_a_spelled_token(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    ids = encode_prompt(tokenizer, user("  <|mask|> \n"))
    assert tokenizer.decode(ids) == "<|start|>user\n<|mask|><|end|><|start|>assistant\n"


def test_template_that_rewrites_a_spelled_token_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ messages[0].content | upper | replace('END', 'end') }}"
    with pytest.raises(UserInputError, match="rewrites"):
        encode_prompt(tokenizer, user("say <|end|> twice"))


def test_template_may_leave_messages_out(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "<|start|>{{ messages[-1].content }}"
    chat = [{"role": "system", "content": "<|mask|>"}, *user("<|end|>1")]
    assert tokenizer.decode(encode_prompt(tokenizer, chat)) == "<|start|><|end|>1"
    assert encode_prompt(tokenizer, chat).count(token_id(tokenizer, "<|end|>")) == 0


def test_token_that_the_vocabulary_knows_as_a_word_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserInputError, match="special tokens only"):
        encode_text(tokenizer, "7+7", special_ids(tokenizer, [token_id(tokenizer, "7")]))


def test_character_without_token_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    for prompt in ("é", user("é")):
        with pytest.raises(UserInputError, match="cannot encode"):
            encode_prompt(tokenizer, prompt)


def test_chat_without_template_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = None
    with pytest.raises(UserInputError, match="no chat template"):
        encode_prompt(tokenizer, user("1"))


@pytest.mark.parametrize("prompt", [7, None, [], ["text"], [{"content": "x"}], [{"role": "user", "content": ["x"]}]])
def test_prompt_that_is_neither_text_nor_chat_is_refused(tokenizer: PreTrainedTokenizerFast, prompt: Any) -> None:
    with pytest.raises(UserInputError, match="must be text"):
        encode_prompt(tokenizer, prompt)


def test_rows_keep_their_columns_and_number(tokenizer: PreTrainedTokenizerFast) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "0012=", "puzzle": "0012", "completion": "9", "extra": 1},
        {"prompt": "1", "puzzle": "1"},
    ]
    first, second = encode_rows(rows, tokenizer, "sudoku", first_id=7)
    assert first.token_ids == encode_text(tokenizer, "0012=")
    assert first.columns == {"puzzle": "0012", "extra": 1}
    assert (first.prompt, first.task, first.prompt_id, second.prompt_id) == ("0012=", "sudoku", 7, 8)


def test_prompts_at_the_limit_stay_and_longer_ones_are_dropped_with_a_count(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [{"prompt": "1" * length} for length in (5, 2, 3, 4)]
    with pytest.warns(UserWarning, match=r"'t': 2 of 4 prompts dropped, longer than max_prompt_length 3"):
        kept = encode_rows(rows, tokenizer, "t", max_prompt_length=3, first_id=10)
    assert [(len(prompt.token_ids), prompt.prompt_id) for prompt in kept] == [(2, 11), (3, 12)]


def test_chat_is_measured_with_its_template_and_never_cut(tokenizer: PreTrainedTokenizerFast) -> None:
    length = len(ordinary(tokenizer, user("12")))
    (kept,) = encode_rows([{"prompt": user("12")}], tokenizer, "t", max_prompt_length=length)
    assert kept.token_ids == ordinary(tokenizer, user("12"))
    with pytest.raises(UserInputError, match=f"max_prompt_length {length - 1}.*shortest has {length} tokens"):
        encode_rows([{"prompt": user("12")}], tokenizer, "t", max_prompt_length=length - 1)


def test_empty_prompt_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserInputError, match="empty prompt in row 1"):
        encode_rows([{"prompt": "1"}, {"prompt": ""}], tokenizer, "t")


GOOD = {"prompt": "3,4:7=", "numbers": [3, 4], "target": 7}


def reward_with_column(completions: list[str], gold: list[str]) -> list[float]:
    return [0.0] * len(completions)


def test_complete_rows_pass() -> None:
    check_columns(Rows([GOOD, GOOD]), [GOOD, GOOD])
    check_columns(Rows([{**GOOD, "gold": 1}], [CountdownEquation(), reward_with_column]), [{**GOOD, "gold": 1}])


@pytest.mark.parametrize("position", [0, 2])
@pytest.mark.parametrize("column", ["prompt", "numbers", "target"])
def test_missing_column_is_named_with_those_found_and_expected(position: int, column: str) -> None:
    rows = [dict(GOOD) for _ in range(3)]
    del rows[position][column]
    with pytest.raises(UserInputError) as caught:
        check_columns(Rows(rows), rows)
    message = str(caught.value)
    assert f"lacks column {column} in row {position}" in message
    assert f"found: {', '.join(sorted(set(GOOD) - {column}))}" in message
    assert re.search(rf"expects: .*{column}", message)
    assert "\n" not in message


@pytest.mark.parametrize(("reward", "column"), [(SudokuGrid(), "puzzle"), (reward_with_column, "gold")])
def test_every_reward_is_checked(reward: Any, column: str) -> None:
    with pytest.raises(UserInputError, match=f"lacks column {column}"):
        check_columns(Rows([GOOD], [CountdownEquation(), reward]), [GOOD])


def test_rows_of_unequal_columns_are_refused() -> None:
    with pytest.raises(UserInputError, match="other columns in row 1"):
        check_columns(Rows([]), [GOOD, {**GOOD, "extra": 1}])


def test_empty_data_set_is_refused() -> None:
    with pytest.raises(UserInputError, match="'rows' has no rows"):
        check_columns(Rows([]), [])
