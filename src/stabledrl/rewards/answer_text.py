"""Finds the answer in a completion. Every function is linear in the text's length."""

import re
from typing import Literal

AnswerFormat = Literal["tags", "bare"]
"""`tags`: inside the last complete <answer>...</answer>. `bare`: the completion is the answer."""

_OPEN, _CLOSE, _BOX = "<answer>", "</answer>", "\\boxed"
# A backslash takes the next character with it, so that \{ and \} count as text.
_BRACE = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)


def find_answer(completion: str, answer_format: AnswerFormat) -> str | None:
    r"""Cuts the answer out of a completion; a \boxed{...} around it is unwrapped.

    Args:
        completion: The completion.
        answer_format: Where the answer stands. With `tags`, a completion without a complete tag may still commit itself
            to a box; text in neither is never graded.

    Returns:
        The answer without surrounding white space; None if there is none.
    """
    region = completion if answer_format == "bare" else last_tag(completion)
    answer = last_box(completion if region is None else region)
    if answer is None:
        answer = region
    return None if answer is None else answer.strip()


def last_tag(text: str) -> str | None:
    """The content of the last complete <answer>...</answer>; None if there is none."""
    *closed, _ = text.split(_CLOSE)
    for before in reversed(closed):
        _, opened, content = before.rpartition(_OPEN)
        if opened:
            return content
    return None


def last_box(text: str) -> str | None:
    r"""The content of the last \boxed{...} with balanced braces; None if there is none.

    The last box is the one that opens last: of nested boxes the innermost.
    """
    opened: list[tuple[bool, int]] = []
    last: tuple[int, int] | None = None
    for match in _BRACE.finditer(text):
        token = match.group()
        if token == "{" or token.startswith(_BOX):
            opened.append((token != "{", match.end()))
        elif token == "}" and opened:
            is_box, start = opened.pop()
            if is_box and (last is None or start > last[0]):
                last = (start, match.start())
    return None if last is None else text[last[0] : last[1]]
