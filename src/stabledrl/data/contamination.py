"""Finds training rows that give away evaluation rows."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from stabledrl.errors import UserInputError

WORDS = 8
SHARE = 0.8
"""A training row with the same numbers and this share of an evaluation row's runs of `WORDS` words is much alike."""
_COMMON_ROWS = 4
_COMMON_SHARE = 0.1
# Signs, and wide gaps between signs, count as words: a puzzle may be made of them.
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+|(?<![^\W\d_]) {2,}(?![^\W\d_])|[^\w\s]|_")
_PROSE = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+")
_PUNCTUATION = re.compile(r"(?<=[\w)\]}])[.,;:!?]+(?=\s|$)")


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Training rows, by number, that occur in an evaluation set.

    Attributes:
        exact: Those whose words are the same.
        similar: Further ones that share most runs of words.
    """

    exact: frozenset[int]
    similar: frozenset[int]

    @property
    def rows(self) -> frozenset[int]:
        """All of them."""
        return self.exact | self.similar


def row_text(row: Mapping[str, Any]) -> str:
    """What a row is about: its `problem` where it has one, else its prompt without the roles of a chat."""
    content = row.get("problem", row["prompt"])
    return content if isinstance(content, str) else "\n".join(str(message["content"]) for message in content)


def normalize(text: str) -> str:
    """The words, numbers and signs of a text, in lower case, without punctuation between words and dollar signs."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("$", "")
    return "\n".join(_WORD.findall(_PUNCTUATION.sub("", plain)))


def find_overlap(train: Sequence[Mapping[str, Any]], evaluation: Sequence[Mapping[str, Any]]) -> Overlap:
    """Compares every training row with every evaluation row; linear in the text of both.

    Rows are the same if their normalised texts are. They are much alike if both have the same numbers and the training
    row holds at least `SHARE` of the evaluation row's runs of `WORDS` words, half of which are not numbers. Runs in
    more than a tenth of the texts, such as an instruction that all prompts share, say nothing and are left out. Texts
    that are short, or half of which is such an instruction, are compared as a whole only.

    Args:
        train: Training rows.
        evaluation: Evaluation rows.

    Returns:
        The training rows that were found.
    """
    texts = [normalize(row_text(row)) for row in train]
    held_out = dict.fromkeys(normalize(row_text(row)) for row in evaluation)
    exact = frozenset(index for index, text in enumerate(texts) if text in held_out)
    distinct = dict.fromkeys(texts)
    similar = _similar(list(distinct), list(held_out))
    found = frozenset(index for index, text in enumerate(texts) if text in similar)
    return Overlap(exact=exact, similar=found - exact)


def report_overlap(
    task: str, train: Sequence[Mapping[str, Any]], evaluation: Mapping[str, Sequence[Mapping[str, Any]]], *, drop: bool
) -> frozenset[int]:
    """Compares a task's training rows with every evaluation set and logs one line for each.

    Args:
        task: Name of the task.
        train: Its training rows.
        evaluation: Evaluation rows by the name of their task.
        drop: Whether rows that were found are to be left out.

    Returns:
        Numbers of the rows to leave out.

    Raises:
        UserInputError: None would be left.
    """
    found: frozenset[int] = frozenset()
    for other, rows in evaluation.items():
        overlap = find_overlap(train, rows)
        found |= overlap.rows
        done = "" if not overlap.rows else ": dropped from training" if drop else ": kept, as contamination is report"
        rank_zero_info(
            f"contamination: of {len(train)} training rows of {task}, {len(overlap.exact)} are among the {len(rows)} "
            f"evaluation rows of {other} and {len(overlap.similar)} are much alike{done}"
        )
    if drop and len(found) == len(train):
        raise UserInputError(
            f"task {task!r} has no training row left of {len(train)} after the filter contamination drop: all occur in "
            f"an evaluation set; use other rows, or contamination report or off"
        )
    return found if drop else frozenset()


def _runs(text: str) -> set[str]:
    words = _PROSE.findall(text)
    runs = (words[start : start + WORDS] for start in range(len(words) - WORDS + 1))
    # Half of a run is words proper: boards and matrices are compared as a whole only.
    return {" ".join(run) for run in runs if sum(len(word) > 1 and word.isalpha() for word in run) * 2 >= WORDS}


def _numbers(text: str) -> Counter[str]:
    return Counter(word for word in _PROSE.findall(text) if word[0].isdigit())


def _similar(train: list[str], evaluation: list[str]) -> set[str]:
    """The training texts that hold the numbers and most runs of an evaluation text."""
    holders: defaultdict[str, list[int]] = defaultdict(list)
    for index, text in enumerate(evaluation):
        for run in _runs(text):
            holders[run].append(index)
    shared = [_runs(text) & holders.keys() for text in train]
    frequency = Counter(run for runs in shared for run in runs)
    most = max(_COMMON_ROWS, _COMMON_SHARE * len(train)), max(_COMMON_ROWS, _COMMON_SHARE * len(evaluation))
    telling = {run: rows for run, rows in holders.items() if frequency[run] <= most[0] and len(rows) <= most[1]}
    runs_of = Counter(index for rows in holders.values() for index in rows)
    total = Counter(index for rows in telling.values() for index in rows)
    numbers = [_numbers(text) for text in evaluation]
    similar = set()
    for text, runs in zip(train, shared):
        held = Counter(index for run in runs for index in telling.get(run, ()))
        alike = [index for index, count in held.items() if count >= SHARE * max(total[index], runs_of[index] / 2)]
        if alike and _numbers(text) in [numbers[index] for index in alike]:
            similar.add(text)
    return similar
