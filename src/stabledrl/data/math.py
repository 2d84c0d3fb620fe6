"""MATH: competition problems (Hendrycks et al., arXiv 2103.03874), evaluated on the 500 of MATH-500."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from stabledrl.data.math_task import MathTask
from stabledrl.data.sources import DataPath, Source
from stabledrl.protocols import Split
from stabledrl.rewards.answer_text import last_box

SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
_BARE_BOX = re.compile(r"\\boxed\s+([^\s$]+)")


class MATH(MathTask):
    r"""The 7500 training problems, whose solutions box the answer, and MATH-500, which was drawn from the test set.

    Of the training set only the split `train` is read: mirrors that join both splits train on what they evaluate on.

    Args:
        source: Hub id, local copy of it, or files; columns `problem` and `solution`.
        evaluation_source: MATH-500; columns `problem` and `answer`.
        subjects: Configurations of the training set: one per subject. An empty list where it has none.
        revision: Branch, tag or commit of the training set; None takes the newest.
        evaluation_revision: The same of the evaluation set.
        name: Names the task in metrics.
        **options: See `MathTask`.

    Raises:
        UserInputError: A value is out of range.
    """

    def __init__(
        self,
        source: DataPath = "EleutherAI/hendrycks_math",
        evaluation_source: DataPath = "HuggingFaceH4/MATH-500",
        *,
        subjects: Sequence[str] = SUBJECTS,
        revision: str | None = None,
        evaluation_revision: str | None = None,
        name: str = "math",
        **options: Any,
    ) -> None:
        train = Source(path=source, split="train", configs=tuple(subjects), revision=revision)
        held_out = Source(path=evaluation_source, split="test", revision=evaluation_revision)
        super().__init__(name, {"train": [train], "evaluation": [held_out]}, **options)

    @override
    def expected_columns(self, split: Split) -> set[str]:
        return {"problem", "solution" if split == "train" else "answer"}

    @override
    def gold(self, record: Mapping[str, Any]) -> str | None:
        answer = record.get("answer")
        return parse_gold(str(record["solution"])) if answer is None else str(answer).strip()


def parse_gold(solution: str) -> str | None:
    r"""The content of a solution's last box: \boxed{...} with nested braces, \fbox{...}, or \boxed 5."""
    text = solution.replace(r"\fbox", r"\boxed")
    answer = last_box(text)
    if answer is None and (bare := _BARE_BOX.findall(text)):
        answer = bare[-1]
    return answer.strip() or None if answer is not None else None
