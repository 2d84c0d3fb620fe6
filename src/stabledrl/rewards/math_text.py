"""Mathematical answers as text: one spelling for each, the value in a sentence, exact numbers. Nothing is evaluated."""

import re
from collections.abc import Sequence
from fractions import Fraction

MAX_LENGTH = 512
"""Characters of the longest text that is read; every function is fast on a text of this length."""

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("‐‑‒–—−﹣－", "-"),
        **dict.fromkeys("·⋅∙×✕∗＊", "*"),
        **dict.fromkeys("÷∕⁄／", "/"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u3000\t\r\n~", " "),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff$€£¥₹%％°", ""),
        **dict.fromkeys("，、", ","),
        **{digit: str(value) for value, digit in enumerate("０１２３４５６７８９")},
        **{digit: f"^{{{value}}}" for value, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
        **{sign: rf"\frac{{{up}}}{{{down}}}" for sign, up, down in ("½12", "⅓13", "⅔23", "¼14", "¾34", "⅕15", "⅛18")},
        **{"π": r"\pi ", "√": r"\sqrt ", "∞": r"\infty ", "±": r"\pm ", "∪": r"\cup ", "∩": r"\cap ", "θ": r"\theta "},
        **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∈": r"\in ", "∅": r"\emptyset "},
        **dict(zip("（）", "()")),
    }
)  # fmt: skip
_SPELLING = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\(?:displaystyle|textstyle|left|right|[bB]igg?[lr]?)(?![A-Za-z])", ""),
        (r"(?<!\\)\\(?:[,;:> ]|q?quad(?![A-Za-z]))", " "),
        (r"\\!|(?<!\\)\\[()\[\]]", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:(?:math|text)(?:rm|bf|it|sf|normal)|mbox|text)\s*\{", r"\\text{"),
        (r"(?<=\d)\{,\}(?=\d{3})", ""),
        (r"(?:,\s*)?(?:\\text\{\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))", ", "),
        (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})(?![A-Za-z])|\\degree(?![A-Za-z])", ""),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset "),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"(\\frac\s*\{[^{}]*\})\s*(\d)", r"\1{\2}"),
        (r"\\frac\s*\{\s*([^{}]*[^{}\s])\s*\}\s*\{\s*([^{}]*[^{}\s])\s*\}", r"\\frac{\1}{\2}"),
        (r"^\s*\\?[A-Za-z]+\s*\\in(?![A-Za-z])", ""),
        (r"\s+", " "),
    ]
]
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d]|,\d)|(?<![\d.,])[1-9]\d{0,2}(?: \d{3})+(?! ?[\d/])")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_POWER = r"(?: ?\^ ?(?:\d|\{-?\d\}))?"
_TEXT_UNIT = re.compile(rf" ?[/*]? ?\\text\{{[^{{}}]*\}}{_POWER}$")
_PLAIN_UNIT = re.compile(
    r"([-+]?(?:[\d.,]+|\\frac\{\d+\}\{\d+\}|(?:\d+ )?\d+ ?/ ?\d+))"
    r"(?: |(?=(?:[ckm]?m|[km]?g|m[lL]|ft|[ap]m)(?![A-Za-z])))"
    r"(?!(?:sin|cos|tan|cot|sec|csc|log|ln|exp|mod|choose)(?![A-Za-z]))"
    rf"(?:[A-Za-z]{{2,}}|[mgshlLNJWVAKCF](?![A-Za-z]))[A-Za-z./ -]*{_POWER}"
)
_LOOSE_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_EXACT = re.compile(
    r"([-+]?) ?(?:(?:(\d+) (?=\d+ ?/)|(\d+) ?(?=\\))?(?:\\frac\{(\d+)\}\{(\d+)\}|(\d+) ?/ ?(\d+))|(\d+\.?\d*|\.\d+))",
    re.ASCII,
)


def canonical(text: str) -> str:
    """One spelling: plain characters and commands, no delimiters, currency, percent signs, degrees or units.

    Args:
        text: At most `MAX_LENGTH` characters.

    Returns:
        The same value, in LaTeX.
    """
    text = text.replace("\\$", "").replace("\\%", "").translate(_CHARACTERS)
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    text = text.strip()
    while not text.startswith("\\text") and (unit := _TEXT_UNIT.search(text)) and unit.start() > 0:
        text = text[: unit.start()].strip()
    text = _TEXT.sub(r"\1", text).strip(" .,;:") if not text.startswith(".") else text.rstrip(" .,;:")
    if not text.startswith(("(", "[", "\\{")):  # A comma in a bracket is one between coordinates.
        text = _THOUSANDS.sub(lambda number: re.sub("[ ,]", "", number.group()), text)
    if unit := _PLAIN_UNIT.fullmatch(text):
        text = unit.group(1)
    choice = re.fullmatch(r"\(([A-Za-z])\)", text)
    return choice.group(1) if choice else text


def exact_number(text: str) -> Fraction | None:
    r"""The value of a whole number, decimal, fraction or mixed number (2\frac{1}{2}, 2 1/2).

    Args:
        text: In canonical spelling.

    Returns:
        The exact value; None if the text is anything else.
    """
    found = _EXACT.fullmatch(text) if len(text) <= MAX_LENGTH else None
    if found is None:
        return None
    sign, whole, latex_whole, up, down, plain_up, plain_down, decimal = found.groups()
    if decimal is not None:
        value = Fraction(decimal)
    elif int(denominator := down or plain_down) == 0:
        return None
    else:
        value = int(whole or latex_whole or 0) + Fraction(int(up or plain_up), int(denominator))
    return -value if sign == "-" else value


def same_text(one: str, other: str) -> bool:
    """Whether two texts in canonical spelling differ in nothing but white space, that between digits excepted."""
    return _LOOSE_SPACE.sub("", one) == _LOOSE_SPACE.sub("", other)


def is_words(text: str) -> bool:
    """Whether a text is words rather than a product of symbols: letters, three of them in a row, and no mathematics."""
    return bool(re.search(r"[^\W\d_]{3}", text)) and not re.search(r"[\d\\^_{}=+*/<>()\[\]]", text)


_LEAD = re.compile(
    r"^\W*(?:(?:so|thus|hence|therefore)\W+)?(?:the )?(?:final )?(?:answer|result|solution|value)\b"
    r"(?: is| are)? ?[:=]? ?",
    re.IGNORECASE,
)
_WORD = re.compile(r"(?<![^\W\d_])(?!(?:and|or)(?![^\W\d_]))[^\W\d_]{2}")
_FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\(([^\\]*(?:\\[^)][^\\]*)*)\\\)|\\\[([^\\]*(?:\\[^\]][^\\]*)*)\\\]")
_COMMAND = re.compile(r"\\[A-Za-z]+(?:\{[A-Za-z ]*\})?")
_LONE_WORD = re.compile(r"(?<!\S)[A-Za-z]{2,}(?!\S)")
_LOOSE_NUMBER = re.compile(r"(?<![\w.,/])(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?)(?![\w/])")


def committed_value(region: str) -> str | None:
    """The value that an answer region commits itself to.

    Args:
        region: What stands in the answer tag or box, at most `MAX_LENGTH` characters.

    Returns:
        It in canonical spelling: the whole region or, of a sentence, the one formula or number in it; None if a
        sentence names several.
    """
    region = _LEAD.sub("", region)
    whole = _LEAD.sub("", canonical(region))
    if exact_number(whole) is not None:
        return whole
    formulas = [found for found in _FORMULA.finditer(region) if not _is_money(found.group())]
    numbers = list(_LOOSE_NUMBER.finditer(region.translate(_CHARACTERS)))
    for text, parts in ((region, formulas), (region.translate(_CHARACTERS), numbers)):
        if parts and _is_sentence(_without(text, parts)):
            values = {canonical(next(filter(None, part.groups()), "")) for part in parts}
            return values.pop() if len(values) == 1 else None
    return whole


def _is_money(formula: str) -> bool:
    """Whether there are words between two dollar signs, which then belong to two sums of money."""
    return bool(_LONE_WORD.search(_COMMAND.sub("", formula.strip("$"))))


def _without(text: str, parts: Sequence[re.Match[str]]) -> str:
    bounds = [0, *(bound for part in parts for bound in part.span()), len(text)]
    return " ".join(text[start:end] for start, end in zip(bounds[::2], bounds[1::2]))


def _is_sentence(text: str) -> bool:
    """Words other than "and" and "or" and punctuation, and nothing that could be part of a formula."""
    return bool(_WORD.search(text)) and all(letter.isalpha() or letter in " .,:;!?'\"()$-\t\n" for letter in text)
