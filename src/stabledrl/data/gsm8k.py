"""GSM8K: grade-school word problems (Cobbe et al., arXiv 2110.14168)."""

import re
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from stabledrl.data.math_task import MathTask, split_sources
from stabledrl.data.sources import DataPath, Source
from stabledrl.protocols import Split

_GOLD = re.compile(r"####\s*\$?\s*(-?[\d,]*\.?\d+)\s*$")


class GSM8K(MathTask):
    """7473 training and 1319 test problems, whose solutions end in `#### 72`.

    Args:
        source: Hub id, local copy of it, or files; columns `question` and `answer`.
        evaluation_source: Held-out problems; None takes the split `test` of `source`.
        config: Configuration of the data set; None where it has only one.
        revision: Branch, tag or commit of the hub data set; None takes the newest.
        name: Names the task in metrics.
        **options: See `MathTask`.

    Raises:
        UserInputError: A value is out of range.
    """

    def __init__(
        self,
        source: DataPath = "openai/gsm8k",
        evaluation_source: DataPath | None = None,
        *,
        config: str | None = "main",
        revision: str | None = None,
        name: str = "gsm8k",
        **options: Any,
    ) -> None:
        configs = () if config is None else (config,)
        train = Source(path=source, split="train", configs=configs, revision=revision)
        held_out = None
        if evaluation_source is not None:
            held_out = Source(path=evaluation_source, split="test", configs=configs, revision=revision)
        super().__init__(name, split_sources(train, held_out, evaluation_split="test"), **options)

    @override
    def expected_columns(self, split: Split) -> set[str]:
        return {"question", "answer"}

    @override
    def problem(self, record: Mapping[str, Any]) -> str:
        return str(record["question"])

    @override
    def gold(self, record: Mapping[str, Any]) -> str | None:
        return parse_gold(str(record["answer"]))


def parse_gold(solution: str) -> str | None:
    """The number after the last `####`, without thousands separators; None if there is none."""
    match = _GOLD.search(solution)
    return None if match is None else match.group(1).replace(",", "")
