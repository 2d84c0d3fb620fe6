"""Exact arithmetic on untrusted text: a tokenizer and a precedence parser. Nothing is ever evaluated as code."""

import re
from fractions import Fraction

MAX_LENGTH = 256
MAX_DIGITS = 12

_TOKEN = re.compile(r"\s*(?:(\d+)|([-+*/()]))", re.ASCII)
_UNICODE = str.maketrans({"×": "*", "·": "*", "⋅": "*", "÷": "/", "∕": "/", "−": "-", "–": "-"})
_LATEX = {"\\times": "*", "\\cdot": "*", "\\div": "/"}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


class ExpressionError(ValueError):
    """The text is not an expression of whole numbers, + - * / and parentheses; the message says why."""


def tokenize(text: str) -> list[int | str]:
    """Splits an expression into whole numbers and operators, which may be written in unicode or LaTeX.

    Raises:
        ExpressionError: The text is too long or holds anything else.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError("longer than an equation can be")
    text = " ".join(text.translate(_UNICODE).split())
    for command, operator in _LATEX.items():
        text = text.replace(command, operator)
    tokens: list[int | str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ExpressionError("not an arithmetic expression")
        digits, symbol = match.groups()
        if digits is not None and len(digits) > MAX_DIGITS:
            raise ExpressionError("a number is too long")
        tokens.append(int(digits) if digits is not None else symbol)
        position = match.end()
    return tokens


def evaluate(tokens: list[int | str]) -> Fraction:
    """Evaluates + - * / with the usual precedence, exactly. A minus sign may open an expression or a parenthesis.

    Raises:
        ExpressionError: The tokens are no expression, or it divides by zero.
    """
    values: list[Fraction] = []
    operators: list[str] = []
    expects_value = True
    for previous, token in zip(["(", *tokens], tokens):
        if isinstance(token, int):
            if not expects_value:
                raise ExpressionError("two numbers without an operator")
            values.append(Fraction(token))
            expects_value = False
        elif token == "(":
            if not expects_value:
                raise ExpressionError("an operator is missing before a parenthesis")
            operators.append(token)
        elif token == "-" and previous == "(":
            values.append(Fraction(0))
            operators.append(token)
        elif expects_value:
            raise ExpressionError("a number is missing")
        elif token == ")":
            _reduce(values, operators, 0)
            if not operators:
                raise ExpressionError("unbalanced parentheses")
            operators.pop()
        else:
            _reduce(values, operators, _PRECEDENCE[token])
            operators.append(token)
            expects_value = True
    if expects_value:
        raise ExpressionError("empty, or a number is missing at the end")
    _reduce(values, operators, 0)
    if operators:
        raise ExpressionError("unbalanced parentheses")
    return values[0]


def _reduce(values: list[Fraction], operators: list[str], least: int) -> None:
    """Applies pending operators down to an opening parenthesis or one of less precedence."""
    while operators and operators[-1] != "(" and _PRECEDENCE[operators[-1]] >= least:
        operator, right, left = operators.pop(), values.pop(), values.pop()
        if operator == "/":
            if right == 0:
                raise ExpressionError("division by zero")
            values.append(left / right)
        else:
            values.append(left + right if operator == "+" else left - right if operator == "-" else left * right)
