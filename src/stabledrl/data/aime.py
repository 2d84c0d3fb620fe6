"""AIME: 30 problems a year whose answers are whole numbers from 0 to 999. For evaluation."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from stabledrl.data.math_task import MathTask
from stabledrl.data.sources import DataPath, Source
from stabledrl.errors import UserInputError
from stabledrl.protocols import Split

HUB = {2024: "HuggingFaceH4/aime_2024", 2025: "math-ai/aime25"}


class AIME(MathTask):
    """One or more years of the American Invitational Mathematics Examination.

    Args:
        years: Which years to evaluate on.
        sources: Hub id, local copy or files of each year; columns `problem` and `answer`. None takes the hub's 2024 and
            2025.
        train_source: Problems to train on, such as earlier years; None makes the task one for evaluation alone.
        revisions: Branch, tag or commit of each year's hub data set; a year that is absent takes the newest.
        name: Names the task in metrics.
        **options: See `MathTask`.

    Raises:
        UserInputError: A year has no source, or a value is out of range.
    """

    def __init__(
        self,
        years: Sequence[int] = (2024, 2025),
        *,
        sources: dict[int, DataPath] | None = None,
        train_source: DataPath | None = None,
        revisions: dict[int, str] | None = None,
        name: str = "aime",
        **options: Any,
    ) -> None:
        known: Mapping[int, DataPath] = HUB if sources is None else sources
        if not years or not set(years) <= known.keys():
            raise UserInputError(
                f"years {list(years)} must be some of {sorted(known)}; give the path of another one in sources"
            )
        held_out = [Source(path=known[year], revision=(revisions or {}).get(year)) for year in years]
        parts: dict[Split, Sequence[Source]] = {"evaluation": held_out}
        if train_source is not None:
            parts["train"] = [Source(path=train_source)]
        super().__init__(name, parts, **options)

    @override
    def expected_columns(self, split: Split) -> set[str]:
        return {"problem", "answer"}

    @override
    def gold(self, record: Mapping[str, Any]) -> str | None:
        return parse_gold(str(record["answer"]))


def parse_gold(answer: str) -> str | None:
    """The whole number that an answer states, without leading zeros: 073 is 73."""
    match = re.fullmatch(r"\s*(\d{1,3})(?:\.0+)?\s*", answer, re.ASCII)
    return None if match is None else str(int(match.group(1)))
