"""The verdict on one completion. Imports no torch, so that grading workers start in a fraction of a second."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Grade:
    """What a grader says about one completion.

    Attributes:
        correct: Whether the answer counts as right in an evaluation; None if no verdict could be reached.
        score: The training reward, finite; None if no verdict could be reached (the sample then leaves the baseline).
        answer: The parsed answer as text; None if the completion holds none.
        reason: A few words on why, for the sample table.
    """

    correct: bool | None
    score: float | None
    answer: str | None
    reason: str
