"""Finds the answer in a completion. Every function is linear in the text's length."""

from typing import Literal

AnswerFormat = Literal["tags", "bare"]
"""`tags`: inside the last complete <answer>...</answer>. `bare`: the completion is the answer."""

_OPEN, _CLOSE, _BOX = "<answer>", "</answer>", "\\boxed{"


def find_answer(completion: str, answer_format: AnswerFormat) -> str | None:
    """Cuts the answer out of a completion; a box around it is unwrapped.

    Args:
        completion: The completion.
        answer_format: Where the answer stands.

    Returns:
        The answer without surrounding white space; None if there is no complete answer tag.
    """
    region = completion if answer_format == "bare" else last_tag(completion)
    if region is None:
        return None
    box = last_box(region)
    return (region if box is None else box).strip()


def last_tag(text: str) -> str | None:
    """The content of the last complete <answer>...</answer>; None if there is none."""
    end = text.rfind(_CLOSE)
    if end < 0:
        return None
    start = text.rfind(_OPEN, 0, end)
    return None if start < 0 else text[start + len(_OPEN) : end]


def last_box(text: str) -> str | None:
    r"""The content of the last \boxed{...} with balanced braces; None if there is none."""
    opened: list[int] = []
    found: tuple[int, str] | None = None
    for index, character in enumerate(text):
        if character == "{":
            opened.append(index)
        elif character == "}" and opened:
            start = opened.pop()
            is_box = text.startswith(_BOX, start - len(_BOX) + 1) if start >= len(_BOX) - 1 else False
            # The last box is the one that opens last; an outer box closes after the boxes it holds.
            if is_box and (found is None or start > found[0]):
                found = (start, text[start + 1 : index])
    return None if found is None else found[1]
