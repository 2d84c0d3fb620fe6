"""What an evaluation found, as CSV for programs and as Markdown for people."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stabledrl.scores import wilson_interval


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """One task at one completion length.

    Attributes:
        task: Its name.
        completion_length: Tokens per completion, C.
        denoising_steps: Steps over the whole completion; None where the sampler has no such setting.
        prompts: Held-out prompts.
        correct: How many greedy completions are right.
        mean_length: Tokens of a greedy completion up to and including its end token.
        tokens_per_second: Those tokens per second and process, by wall-clock, in batches as evaluated.
        steps_per_second: Denoising steps of whole batches, per second and process.
        samples_per_prompt: Completions behind pass@k and majority@k; 0 for none.
        temperature: At which these were sampled; None for none.
        pass_at_k: Mean over the prompts, by k.
        majority_at_k: Likewise; None where the task's grader parses no answers.
    """

    task: str
    completion_length: int
    denoising_steps: int | None
    prompts: int
    correct: int
    mean_length: float
    tokens_per_second: float
    steps_per_second: float
    samples_per_prompt: int
    temperature: float | None
    pass_at_k: Mapping[int, float]
    majority_at_k: Mapping[int, float | None]

    @property
    def accuracy(self) -> float:
        """Share of the prompts whose greedy completion is right."""
        return self.correct / self.prompts

    @property
    def interval(self) -> tuple[float, float]:
        """The accuracy's Wilson interval at 95 %: chance over prompts, not over trainings."""
        return wilson_interval(self.correct, self.prompts)


def to_csv(rows: Sequence[ScoreRow]) -> str:
    """A line per row, unrounded; empty cells where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    records = [_record(row) for row in rows]
    writer.writerow(records[0])
    writer.writerows(record.values() for record in records)
    return text.getvalue()


def _record(row: ScoreRow) -> dict[str, str | float | None]:
    low, high = row.interval
    return {
        "task": row.task,
        "completion_length": row.completion_length,
        "denoising_steps": row.denoising_steps,
        "prompts": row.prompts,
        "correct": row.correct,
        "accuracy": row.accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
        "mean_length": row.mean_length,
        "tokens_per_second": row.tokens_per_second,
        "steps_per_second": row.steps_per_second,
        "samples_per_prompt": row.samples_per_prompt,
        "temperature": row.temperature,
        **{f"pass@{k}": value for k, value in row.pass_at_k.items()},
        **{f"majority@{k}": value for k, value in row.majority_at_k.items()},
    }


def to_markdown(rows: Sequence[ScoreRow]) -> str:
    """A table that reads well as plain text too, and a line on what its numbers are."""
    records = [_cells(row) for row in rows]
    header = list(records[0])
    lines = [header, *(list(record.values()) for record in records)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in [header, rule, *lines[1:]]]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", _legend(rows[0])]) + "\n"


def _cells(row: ScoreRow) -> dict[str, str]:
    low, high = row.interval
    return {
        "task": row.task.replace("|", "\\|"),
        "length": str(row.completion_length),
        "steps": _number(row.denoising_steps, "d"),
        "prompts": str(row.prompts),
        "accuracy": f"{row.accuracy:.3f} [{low:.3f}, {high:.3f}]",
        **{f"pass@{k}": _number(value, ".3f") for k, value in row.pass_at_k.items()},
        **{f"majority@{k}": _number(value, ".3f") for k, value in row.majority_at_k.items()},
        "mean length": f"{row.mean_length:.1f}",
        "tokens/s": f"{row.tokens_per_second:.0f}",
        "steps/s": f"{row.steps_per_second:.1f}",
    }


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _legend(row: ScoreRow) -> str:
    text = "Accuracy is greedy, with its 95 % Wilson interval; speed is that of the greedy batches."
    if row.samples_per_prompt:
        text += f" pass@k and majority@k: {row.samples_per_prompt} samples per prompt at temperature {row.temperature}."
    return text
