from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabledrl.rewards.math_structure import Statement, Structure, statement_of, structure_of
from stabledrl.rewards.math_text import MAX_LENGTH, canonical, committed_value, exact_number, same_text

integers = st.integers(-(10**9), 10**9)


@given(integers, st.integers(1, 10**6))
def test_every_spelling_of_a_fraction_has_its_exact_value(up: int, down: int) -> None:
    sign, size = ("-", -up) if up < 0 else ("", up)
    whole, rest = divmod(size, down)
    texts = [
        f"{up}/{down}",
        rf"\frac{{{up}}}{{{down}}}" if up >= 0 else rf"-\dfrac{{{size}}}{{{down}}}",
        f"{sign}{whole} {rest}/{down}",
        rf"{sign}{whole}\frac{{{rest}}}{{{down}}}",
    ]
    assert {exact_number(canonical(text)) for text in texts} == {Fraction(up, down)}


@given(integers, st.integers(0, 9))
def test_every_spelling_of_a_decimal_has_its_exact_value(number: int, places: int) -> None:
    value = Fraction(number, 10**places)
    plain = f"{abs(number) // 10**places}.{abs(number) % 10**places:0{places}d}" if places else str(abs(number))
    grouped = f"{abs(number) // 10**places:,}" + plain[plain.find(".") :] if places else f"{abs(number):,}"
    sign = "-" if number < 0 else ""
    texts = [plain, f"00{plain}", f"{plain}0" if places else f"{plain}.0", grouped, f"${grouped}", f"{plain} kg"]
    assert {exact_number(canonical(sign + text)) for text in texts} == {value}


@pytest.mark.parametrize(
    "text", ["", "x", "1/0", r"\frac{1}{0}", "1e5", "1.2.3", "--5", "5!", "1,2", "∞", "9" * 5000, "٣"]
)
def test_everything_else_is_no_number(text: str) -> None:
    assert exact_number(canonical(text)) is None


@given(st.text(max_size=MAX_LENGTH) | st.text(st.sampled_from("\\{}[]()$%^_=,.;15 xandtfrc"), max_size=200))
def test_any_text_is_read_without_error(text: str) -> None:
    value = committed_value(text)
    for spelling in (canonical(text), value or ""):
        exact_number(spelling)
        structure = structure_of(spelling)
        assert structure.items
        for item in structure.items:
            assert statement_of(item).sides


def test_white_space_counts_only_between_digits() -> None:
    assert same_text("2 x + 1", "2x+1")
    assert not same_text("1 1", "11")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("the answer is 5 apples", "5"),
        ("The final answer is: $x^2+1$.", "x^2+1"),
        ("There are $5$ apples", "5"),
        ("It costs $5.00 a day", "5.00"),
        ("$5 a day or $35 a week", None),
        ("4, no wait, 5", None),
        ("either 5 or 6", None),
        ("5, again 5", "5"),
        ("2ab + 3", "2ab + 3"),
        ("no real solutions", "no real solutions"),
        ("5__import__('os')", "5__import__('os')"),
    ],
)
def test_a_sentence_commits_itself_to_its_only_value(text: str, value: str | None) -> None:
    assert committed_value(text) == value


@pytest.mark.parametrize(
    ("text", "structure"),
    [
        ("5", Structure("values", ("5",))),
        ("1,2; 3", Structure("values", ("1", "2", "3"))),
        (r"\{1,2\}", Structure("set", ("1", "2"))),
        ("(1,f(2,3)]", Structure("tuple", ("1", "f(2,3)"), "(]")),
        ("(x+1)(x,2)", Structure("values", ("(x+1)(x,2)",))),
        ("(5)", Structure("values", ("(5)",))),
        (r"\pm 3", Structure("values", ("3", "- 3"))),
        (r"1\pm 2, 3", Structure("values", ("1+ 2", "1- 2", "3"))),
        (r"a\pm b\mp c", Structure("values", ("a+ b- c", "a- b+ c"))),
    ],
)
def test_structure_is_read_at_the_top_level_only(text: str, structure: Structure) -> None:
    assert structure_of(text) == structure


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("5", Statement(None, ("5",))),
        ("x=5", Statement("x", ("5",))),
        ("5 = x", Statement("x", ("5",))),
        (r"\theta_1 = 5", Statement(r"\theta_1", ("5",))),
        ("f(x) = 2x = x+x", Statement("f(x)", ("2x", "x+x"))),
        ("x+1=5", Statement(None, ("x+1", "5"))),
        ("xy=5", Statement(None, ("xy", "5"))),
        ("x<=5", Statement(None, ("x<=5",))),
    ],
)
def test_only_one_symbol_is_assigned_to(text: str, statement: Statement) -> None:
    assert statement_of(text) == statement
