"""Whether two mathematical answers are the same. Runs in workers only: nothing here bounds the time it takes."""

import logging
from typing import Any

from stabledrl.rewards.math_structure import Statement, Structure, statement_of, structure_of
from stabledrl.rewards.math_text import canonical, exact_number, is_words, same_text


def same_answer(gold: str, answer: str) -> bool:
    """Judges an answer.

    Values are compared exactly, by sympy where they are not plain numbers. Several values have no order, coordinates
    have. An equation answers a value only if it assigns it to one symbol, or if all its sides are equal.

    Args:
        gold: The right answer, in canonical spelling.
        answer: The answer, in canonical spelling.

    Returns:
        Whether they are the same; False too where one of them cannot be understood.
    """
    right, found = structure_of(gold), structure_of(answer)
    if {right.kind, found.kind} == {"set", "tuple"}:
        return False
    if "tuple" not in (right.kind, found.kind):
        return _same_in_any_order(right.items, found.items)
    if right.kind == found.kind:
        return right.brackets == found.brackets and _same_in_order(right, found)
    if min(len(right.items), len(found.items)) > 1:  # Coordinates without their brackets.
        return _same_in_order(right, found)
    return _equal(gold, answer)


def prepare() -> None:
    """Imports what judging needs and fills its caches."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    for gold, answer in [
        ("(x+1)^2", "x^2+2x+1"),
        (r"\frac{\sqrt{8}}{3}", r"2\sqrt{2}/3"),
        (r"\pi r^2", "1"),
        ("x<1", "1"),
    ]:
        same_answer(gold, answer)


def _same_in_order(gold: Structure, answer: Structure) -> bool:
    pairs = zip(gold.items, answer.items)
    return len(gold.items) == len(answer.items) and all(_same_statement(*pair) for pair in pairs)


def _same_in_any_order(gold: tuple[str, ...], answer: tuple[str, ...]) -> bool:
    if len(gold) != len(answer):
        return False
    left = list(answer)
    for value in gold:
        match = next((index for index, other in enumerate(left) if _same_statement(value, other)), None)
        if match is None:
            return False
        left.pop(match)
    return True


def _same_statement(gold: str, answer: str) -> bool:
    right, found = statement_of(canonical(gold)), statement_of(canonical(answer))
    if right.symbol and found.symbol and right.symbol != found.symbol:
        return False
    if right.symbol is None and len(right.sides) > 1:  # An equation is wanted.
        return found.symbol is None and len(found.sides) > 1 and _equal(gold, answer)
    return _all_equal(found) and _equal(right.sides[-1], found.sides[-1])


def _all_equal(statement: Statement) -> bool:
    return all(_equal(one, other) for one, other in zip(statement.sides, statement.sides[1:]))


def _equal(gold: str, answer: str) -> bool:
    if same_text(gold, answer):
        return bool(gold)
    numbers = exact_number(gold), exact_number(answer)
    if None not in numbers:
        return numbers[0] == numbers[1]
    if is_words(gold) or is_words(answer):
        return " ".join(gold.casefold().split()) == " ".join(answer.casefold().split())
    try:
        return _equal_in_sympy(gold, answer)
    except Exception:  # Of a parser and an algebra system, on any text at all.
        return False


def _equal_in_sympy(gold: str, answer: str) -> bool:
    from math_verify import verify
    from sympy import Rational

    right, found = _parse(gold), _parse(answer)
    if right is None or found is None:
        return False
    values = [value.doit() if not value.free_symbols else value for value in (right, found)]
    if all(isinstance(value, Rational) for value in values):
        return bool(values[0] == values[1])
    return bool(verify(right, found, allow_set_relation_comp=True, timeout_seconds=None))


def _parse(text: str) -> Any:
    """The expression, its decimals as exact fractions; None if the text is none."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse
    from sympy import Float, Rational

    # Without its units, among which are a, b, c and ab: ours are already gone.
    spelling = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
    config = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=spelling)
    parsed = parse(f"${text}$", [config], fallback_mode="no_fallback", parsing_timeout=None)
    if not parsed:
        return None
    exact = {number: Rational(str(number)) for number in parsed[0].atoms(Float)}
    return parsed[0].xreplace(exact) if exact else parsed[0]
