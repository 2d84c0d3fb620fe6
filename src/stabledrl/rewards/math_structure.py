"""The outer structure of a mathematical answer: a value, several in no order, or a tuple. Text only."""

import re
from dataclasses import dataclass
from typing import Literal

_BRACKET = re.compile(r"\\[{}]|[()\[\]{},;]")
_EQUALS = re.compile(r"(?<![<>!:\\=])=(?!=)")
_SYMBOL = re.compile(r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_(?:\w|\{\w+\}))?'?(?:\([A-Za-z]\))?")
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])|\+/-")
_MINUS_PLUS = re.compile(r"\\mp(?![A-Za-z])")


@dataclass(frozen=True)
class Structure:
    """An answer's parts.

    Attributes:
        kind: `values`: one or several, without order; `set`: the same in braces; `tuple`: ordered, in brackets.
        items: The parts.
        brackets: Around a tuple: of a point or an interval.
    """

    kind: Literal["values", "set", "tuple"]
    items: tuple[str, ...]
    brackets: str = ""


def structure_of(text: str) -> Structure:
    r"""Takes an answer in canonical spelling apart; a \pm b is two values."""
    if text.startswith("\\{") and _closes_at(text) == len(text):
        return Structure("set", _values(text[2:-2]))
    if text.startswith(("(", "[")) and _closes_at(text) == len(text):
        items = _split(text[1:-1])
        if len(items) > 1:
            return Structure("tuple", items, text[0] + text[-1])
    return Structure("values", _values(text))


@dataclass(frozen=True)
class Statement:
    """A value, perhaps named, perhaps said in several ways.

    Attributes:
        symbol: The one symbol it is assigned to, as x in x = 5.
        sides: What stands between the further equals signs.
    """

    symbol: str | None
    sides: tuple[str, ...]


def statement_of(text: str) -> Statement:
    """Tells the assignment to one symbol from other equations."""
    sides = [side.strip() for side in _EQUALS.split(text)]
    if len(sides) == 2 and _SYMBOL.fullmatch(sides[1]) and not _SYMBOL.fullmatch(sides[0]):
        sides.reverse()
    symbol = None
    while len(sides) > 1 and _SYMBOL.fullmatch(sides[0]):
        symbol = sides.pop(0)
    return Statement(symbol, tuple(sides))


def _values(text: str) -> tuple[str, ...]:
    values: list[str] = []
    for item in _split(text):
        signs = _PLUS_MINUS.search(item) or _MINUS_PLUS.search(item)
        # More than one is one choice for all, with \mp the other way round.
        for plus, minus in (("+", "-"), ("-", "+")) if signs else [("", "")]:
            chosen = _PLUS_MINUS.sub(plus, _MINUS_PLUS.sub(minus, item))
            values.append(chosen.strip().removeprefix("+").strip())
    return tuple(values)


def _split(text: str) -> tuple[str, ...]:
    """The parts between commas or semicolons outside of any bracket."""
    parts, start, depth = [], 0, 0
    for token in _BRACKET.finditer(text):
        sign = token.group()
        if sign in (",", ";"):
            if depth == 0:
                parts.append(text[start : token.start()].strip())
                start = token.end()
        else:
            depth += 1 if sign in ("(", "[", "{", "\\{") else -1
    return (*parts, text[start:].strip())


def _closes_at(text: str) -> int:
    """Where the bracket that opens a text is closed; 0 if nowhere."""
    depth = 0
    for token in _BRACKET.finditer(text):
        if (sign := token.group()) not in (",", ";"):
            depth += 1 if sign in ("(", "[", "{", "\\{") else -1
            if depth == 0:
                return token.end()
    return 0
