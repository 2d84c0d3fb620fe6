import contextlib
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.rewards.arithmetic import ExpressionError, evaluate, tokenize

Tree = Any
"""A number, or (operator, left, right)."""

TREES = st.recursive(st.integers(0, 99), lambda child: st.tuples(st.sampled_from("+-*/"), child, child), max_leaves=10)


def written(tree: Tree, parent: int = 0, is_right: bool = False) -> str:
    """Infix form with no more parentheses than needed."""
    if isinstance(tree, int):
        return str(tree)
    operator, left, right = tree
    strength = 1 if operator in "+-" else 2
    text = f"{written(left, strength)} {operator} {written(right, strength, True)}"
    return f"({text})" if strength < parent or (is_right and strength == parent) else text


def value(tree: Tree) -> Fraction:
    if isinstance(tree, int):
        return Fraction(tree)
    left, right = value(tree[1]), value(tree[2])
    return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[tree[0]](right)


@given(TREES)
def test_value_is_exact_for_every_expression(tree: Tree) -> None:
    text = written(tree)
    try:
        expected = value(tree)
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="division by zero"):
            evaluate(tokenize(text))
    else:
        assert evaluate(tokenize(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8-3-2", 3),
        ("8/4/2", 1),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("-3+8", 5),
        ("-3*2", -6),
        ("4*(-3+5)", 8),
        ("((((7))))", 7),
        ("2×4−3", 5),
        ("6÷3·2", 4),
        (r"2 \times 4 - 6 \div 3", 6),
        ("\u00a02\u2009+\t3\n", 5),
        ("007", 7),
    ],
)
def test_usual_notation_is_understood(text: str, expected: int) -> None:
    assert evaluate(tokenize(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "2+", "*2", "2**3", "2//3", "2--3", "2*-3", "+3", "2 3", "2(3)", "(2)3", "()", "(2", "2)", "(2+)"),
        *(
            "2^3",
            "2.5",
            "1e3",
            "0x1f",
            "1_000",
            "x",
            "abs(2)",
            "__import__('os')",
            "2;3",
            "2,3",
            "2=2",
            "²",
            "٣",
            "２",
            "2%2",
        ),
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(tokenize(text))


@given(st.text(st.sampled_from("0123456789+-*/()= ×x."), max_size=80) | st.text(max_size=80))
def test_no_text_raises_anything_else(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        assert isinstance(evaluate(tokenize(text)), Fraction)
