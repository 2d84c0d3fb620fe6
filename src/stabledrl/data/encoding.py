"""From rows of a task to token ids. A prompt is never cut, and its text never becomes a special token."""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from stabledrl.errors import UserInputError
from stabledrl.protocols import Task
from stabledrl.rewards.scoring import RESERVED_COLUMNS, required_columns, reward_name

_HOLDER = re.compile("\ue000(\\d+)\ue001")


@dataclass(frozen=True, kw_only=True)
class EncodedPrompt:
    """A prompt ready for the loader.

    Attributes:
        token_ids: Its tokens.
        prompt: Text, or a list of chat messages.
        columns: The row's further columns, without a demonstrated completion.
        task: Name of its task.
        prompt_id: Its number among all prompts of its split, before any is dropped.
    """

    token_ids: list[int]
    prompt: Any
    columns: Mapping[str, Any]
    task: str
    prompt_id: int


def special_ids(tokenizer: Any, further: Iterable[int] = ()) -> frozenset[int]:
    """Ids that text must never be encoded to: the tokenizer's special tokens but the unknown one, and the further ones.

    Args:
        tokenizer: The tokenizer.
        further: Ids with a meaning that the tokenizer does not declare, such as a mask token.
    """
    added = {token for token, content in tokenizer.added_tokens_decoder.items() if content.special}
    unknown = {tokenizer.unk_token_id} - {tokenizer.eos_token_id, tokenizer.bos_token_id}
    return frozenset((added | set(tokenizer.all_special_ids)) - unknown | set(further))


def encode_text(tokenizer: Any, text: str, special: frozenset[int] | None = None) -> list[int]:
    """Encodes text as data: without tokens around it, and with spelled-out special tokens taken as plain characters.

    Args:
        tokenizer: The tokenizer.
        text: The text.
        special: From `special_ids`; None takes the tokenizer's own.

    Returns:
        Token ids, none of them special.

    Raises:
        UserInputError: The tokenizer has no token for a character, or only special ones.
    """
    if special is None:
        special = special_ids(tokenizer)
    ids = _plain_ids(tokenizer, text)
    if special.isdisjoint(ids):
        return ids
    # The tokenizer matches a token that it does not count as special: cut the spelling after its first character.
    spellings = [re.escape(tokenizer.convert_ids_to_tokens(token)) for token in sorted(special.intersection(ids))]
    cuts = [0, *(match.start() + 1 for match in re.finditer("|".join(spellings), text)), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(cuts)]
    ids = [token for part in parts if part for token in _plain_ids(tokenizer, part)]
    if not special.isdisjoint(ids):
        raise UserInputError(f"the tokenizer can encode {text[:80]!r} with special tokens only; remove their spelling")
    return ids


def _plain_ids(tokenizer: Any, text: str, **options: Any) -> list[int]:
    options.setdefault("split_special_tokens", True)
    try:
        ids: list[int] = tokenizer(text, add_special_tokens=False, **options).input_ids
    except Exception as error:
        unknown = next((f", it does not know {one!r}" for one in dict.fromkeys(text) if not _knows(tokenizer, one)), "")
        raise UserInputError(f"the tokenizer cannot encode {text[:80]!r}{unknown}: {error}") from error
    return ids


def _knows(tokenizer: Any, character: str) -> bool:
    try:
        tokenizer(character, add_special_tokens=False)
    except Exception:
        return False
    return True


def encode_prompt(tokenizer: Any, prompt: Any, special: frozenset[int] | None = None) -> list[int]:
    """Encodes a prompt: text as it is, chat messages through the tokenizer's chat template.

    The rendered chat is encoded as a whole, as the model knows it, if that gives the template's own special tokens and
    no more. Otherwise a message spells one, and the messages are encoded apart from the template.

    Args:
        tokenizer: The tokenizer.
        prompt: Text, or a list of messages with `role` and `content`.
        special: From `special_ids`; None takes the tokenizer's own.

    Returns:
        Token ids.

    Raises:
        UserInputError: The prompt is neither, the tokenizer has no chat template, or cannot encode the text.
    """
    if isinstance(prompt, str):
        return encode_text(tokenizer, prompt, special)
    if not _is_chat(prompt):
        raise UserInputError(f"prompt {str(prompt)[:80]!r} must be text, or a list of messages with role and content")
    if not getattr(tokenizer, "chat_template", None):
        raise UserInputError("the prompt is a chat, but the tokenizer has no chat template; use plain-text prompts")
    if special is None:
        special = special_ids(tokenizer)
    whole = _render(tokenizer, prompt)
    held = [{**message, "content": f"\ue000{index}\ue001"} for index, message in enumerate(prompt)]
    # Template text at even places, the number of the message that goes between at odd ones.
    pieces = _HOLDER.split(_render(tokenizer, held))
    template = [_plain_ids(tokenizer, piece, split_special_tokens=False) if piece else [] for piece in pieces[::2]]
    ids = _plain_ids(tokenizer, whole, split_special_tokens=False)
    own = [token for part in template for token in part if token in special]
    if [token for token in ids if token in special] == own:
        return ids
    contents = _contents(prompt, pieces, whole)
    ids = template[0]
    for content, part in zip(contents, template[1:]):
        ids = ids + encode_text(tokenizer, content, special) + part
    return ids


def _is_chat(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(message, Mapping) and isinstance(message.get("content"), str) for message in prompt)
        and all("role" in message for message in prompt)
    )


def _render(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> str:
    try:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:
        raise UserInputError(f"the chat template cannot render {str(messages)[:80]!r}: {error}") from error
    return text


def _contents(prompt: Sequence[Mapping[str, Any]], pieces: Sequence[str], whole: str) -> list[str]:
    """The messages' texts as the template prints them: as they are, or without white space around them."""
    for printed in (str, str.strip):
        contents = [printed(prompt[int(index)]["content"]) for index in pieces[1::2]]
        filled = [text for pair in zip(pieces[::2], [*contents, ""]) for text in pair]
        if "".join(filled) == whole:
            return contents
    raise UserInputError(
        f"the chat template rewrites {whole[:80]!r}, which spells a special token; remove that from the prompt"
    )


def encode_rows(
    rows: Iterable[Mapping[str, Any]],
    tokenizer: Any,
    task: str,
    *,
    max_prompt_length: int | None = None,
    first_id: int = 0,
    special: frozenset[int] | None = None,
    left_out: Collection[int] = (),
) -> list[EncodedPrompt]:
    """Encodes a task's rows. Prompts that are too long are dropped, with a warning that counts them; none is ever cut.

    Args:
        rows: Rows with a `prompt`.
        tokenizer: The tokenizer.
        task: Name of the task.
        max_prompt_length: Longest prompt in tokens; None keeps all.
        first_id: Id of the first row.
        special: From `special_ids`; None takes the tokenizer's own.
        left_out: Numbers of rows to pass over.

    Returns:
        The prompts that fit.

    Raises:
        UserInputError: None fits, or a prompt is empty or cannot be encoded.
    """
    special = special_ids(tokenizer) if special is None else special
    encoded = [
        EncodedPrompt(
            token_ids=encode_prompt(tokenizer, row["prompt"], special),
            prompt=row["prompt"],
            columns={name: value for name, value in row.items() if name not in RESERVED_COLUMNS},
            task=task,
            prompt_id=first_id + index,
        )
        for index, row in enumerate(rows)
        if index not in left_out
    ]
    if empty := [one.prompt_id - first_id for one in encoded if not one.token_ids]:
        raise UserInputError(f"task {task!r} has an empty prompt in row {empty[0]}; every prompt needs a token")
    kept = [one for one in encoded if max_prompt_length is None or len(one.token_ids) <= max_prompt_length]
    if not kept:
        shortest = min((len(one.token_ids) for one in encoded), default=0)
        raise UserInputError(
            f"task {task!r} has no prompt left of {len(encoded)} after the filter max_prompt_length "
            f"{max_prompt_length} (the shortest has {shortest} tokens)"
        )
    if dropped := len(encoded) - len(kept):
        rank_zero_warn(
            f"task {task!r}: {dropped} of {len(encoded)} prompts dropped, longer than max_prompt_length "
            f"{max_prompt_length}"
        )
    return kept


def check_columns(task: Task, rows: Sequence[Mapping[str, Any]]) -> None:
    """Checks that every row holds what the task's rewards ask for; needs neither tokenizer nor model.

    Raises:
        UserInputError: There are no rows, or a column is missing.
    """
    if not rows:
        raise UserInputError(f"task {task.name!r} has no rows")
    wanted = {"the prompt": {"prompt"}, **{reward_name(reward): required_columns(reward) for reward in task.rewards}}
    for index, row in enumerate(rows):
        for owner, columns in wanted.items():
            if missing := columns - row.keys():
                raise UserInputError(
                    f"task {task.name!r} lacks column {', '.join(sorted(missing))} in row {index}; found: "
                    f"{', '.join(sorted(row))}; {owner} expects: {', '.join(sorted(columns))}"
                )
        if row.keys() != rows[0].keys():
            raise UserInputError(
                f"task {task.name!r} has other columns in row {index} than in row 0: {', '.join(sorted(row))} and "
                f"{', '.join(sorted(rows[0]))}"
            )
