"""Shows what the policy writes: a table in TensorBoard and a line per completion on disk."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.types import Sample

_COLUMNS = ("prompt", "completion", "answer", "correct", "reason", "reward", "advantage")
# In one pass: escapes hold characters that are escaped themselves.
_ESCAPES = {ord(character): f"&#{ord(character)};" for character in "\\`*_{}[]<>#|&~"}


class SampleTable(Callback):
    """Records rollout samples: prompt, completion, parsed answer, verdict and reason, reward and advantage.

    Every completion of a recorded rollout goes to `samples.jsonl` in the run's log directory; the first few are shown
    in TensorBoard under Text.

    Args:
        every_n_rollouts: How often to record.
        rows: Completions in the TensorBoard table.

    Raises:
        UserInputError: A value is below 1.

    Example:
        >>> table = SampleTable(every_n_rollouts=10, rows=8)
    """

    requires_rollouts = True

    def __init__(self, every_n_rollouts: int = 5, rows: int = 8) -> None:
        if every_n_rollouts < 1:
            raise UserInputError(f"every_n_rollouts {every_n_rollouts} must be at least 1")
        if rows < 1:
            raise UserInputError(f"rows {rows} must be at least 1")
        self.every_n_rollouts = every_n_rollouts
        self.rows = rows
        self._seen = 0

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: dict[str, Any], batch_idx: int
    ) -> None:
        samples: Sequence[Sample] | None = batch.get("samples")
        if samples is None:
            return
        self._seen += 1
        if (self._seen - 1) % self.every_n_rollouts:
            return
        log_dir = trainer.log_dir  # asked by all processes: they agree on it
        if log_dir is None or not trainer.is_global_zero:
            return
        step = batch["step"]
        write_samples(Path(log_dir) / "samples.jsonl", samples, step=step)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_text("samples", markdown_table(samples[: self.rows]), step)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._seen = state_dict["seen"]


def write_samples(path: Path, samples: Iterable[Sample | Mapping[str, Any]], **extra: Any) -> None:
    """Appends samples to a JSONL file, a line each.

    Args:
        path: The file; made with its directory where absent.
        samples: What to write, as they are or as the dicts of their fields.
        **extra: Further fields of every line.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [sample if isinstance(sample, Mapping) else dataclasses.asdict(sample) for sample in samples]
    lines = [json.dumps({**extra, **row}, ensure_ascii=False) for row in rows]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def markdown_table(samples: Sequence[Sample]) -> str:
    """The samples as a Markdown table; text that Markdown would interpret is escaped."""
    rows = ["| " + " | ".join(_COLUMNS) + " |", "|" + " --- |" * len(_COLUMNS)]
    rows += ["| " + " | ".join(_cell(getattr(sample, name)) for name in _COLUMNS) + " |" for sample in samples]
    return "\n".join(rows)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    lines = "" if value is None else str(value).translate(_ESCAPES)
    return "<br>".join(lines.splitlines())
