"""From rows of a task to token ids. A prompt is never cut, and its text never becomes a special token."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from stabledrl.errors import UserInputError
from stabledrl.protocols import Task
from stabledrl.rewards.scoring import required_columns, reward_name


@dataclass(frozen=True, kw_only=True)
class EncodedPrompt:
    """A prompt ready for the loader.

    Attributes:
        token_ids: Its tokens.
        prompt: Text, or a list of chat messages.
        columns: The row's further columns.
        task: Name of its task.
        prompt_id: Its number among all prompts of its split, before any is dropped.
    """

    token_ids: list[int]
    prompt: Any
    columns: Mapping[str, Any]
    task: str
    prompt_id: int


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Encodes text as data: without tokens around it, and with spelled-out special tokens taken as plain characters.

    Raises:
        UserInputError: The tokenizer has no token for a character.
    """
    try:
        ids: list[int] = tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
    except Exception as error:
        raise UserInputError(f"the tokenizer cannot encode {text[:80]!r}: {error}") from error
    return ids


def encode_prompt(tokenizer: Any, prompt: Any) -> list[int]:
    """Encodes a prompt: text as it is, chat messages through the tokenizer's chat template.

    The template is rendered with placeholders, and the messages' texts are encoded apart: only the template's own
    special tokens become special.

    Args:
        tokenizer: The tokenizer.
        prompt: Text, or a list of messages with `role` and `content`.

    Returns:
        Token ids.

    Raises:
        UserInputError: The tokenizer has no chat template, or cannot encode the text.
    """
    if isinstance(prompt, str):
        return encode_text(tokenizer, prompt)
    if not getattr(tokenizer, "chat_template", None):
        raise UserInputError("the prompt is a chat, but the tokenizer has no chat template; use plain-text prompts")
    holders = [f"\ue000{index}\ue001" for index in range(len(prompt))]
    messages = [{**message, "content": holder} for message, holder in zip(prompt, holders)]
    rest = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = []
    for holder, message in zip(holders, prompt):
        before, found, rest = rest.partition(holder)
        if not found:
            raise UserInputError(f"the chat template dropped or moved the {message['role']!r} message")
        ids += tokenizer(before, add_special_tokens=False).input_ids
        ids += encode_text(tokenizer, message["content"])
    return ids + list(tokenizer(rest, add_special_tokens=False).input_ids)


def encode_rows(
    rows: Iterable[Mapping[str, Any]], tokenizer: Any, task: str, max_prompt_length: int | None, first_id: int = 0
) -> list[EncodedPrompt]:
    """Encodes a task's rows. Prompts that are too long are dropped, with a warning that counts them.

    Args:
        rows: Rows with a `prompt`.
        tokenizer: The tokenizer.
        task: Name of the task.
        max_prompt_length: Longest prompt in tokens; None keeps all.
        first_id: Id of the first row.

    Returns:
        The prompts that fit.

    Raises:
        UserInputError: None fits.
    """
    encoded = [
        EncodedPrompt(
            token_ids=encode_prompt(tokenizer, row["prompt"]),
            prompt=row["prompt"],
            columns={name: value for name, value in row.items() if name != "prompt"},
            task=task,
            prompt_id=first_id + index,
        )
        for index, row in enumerate(rows)
    ]
    kept = [one for one in encoded if max_prompt_length is None or len(one.token_ids) <= max_prompt_length]
    if dropped := len(encoded) - len(kept):
        rank_zero_warn(f"task {task}: {dropped} of {len(encoded)} prompts are longer than {max_prompt_length}, dropped")
    if not kept:
        shortest = min((len(one.token_ids) for one in encoded), default=0)
        raise UserInputError(
            f"task {task!r} has no prompt left of {len(encoded)} after the filter max_prompt_length {max_prompt_length} "
            f"(the shortest has {shortest} tokens)"
        )
    return kept


def check_columns(task: Task, rows: Sequence[Mapping[str, Any]]) -> None:
    """Checks that rows hold what the task's rewards ask for; needs neither tokenizer nor model.

    Raises:
        UserInputError: There are no rows, or a column is missing.
    """
    if not rows:
        raise UserInputError(f"task {task.name!r} has no rows")
    found = set(rows[0])
    for owner, wanted in [("the prompt", {"prompt"}), *((reward_name(r), required_columns(r)) for r in task.rewards)]:
        if missing := wanted - found:
            raise UserInputError(
                f"task {task.name!r} lacks column {', '.join(sorted(missing))} that {owner} needs; "
                f"found: {', '.join(sorted(found))}"
            )
