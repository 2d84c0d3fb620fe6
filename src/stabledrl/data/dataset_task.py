"""The base of tasks whose rows come from a data set."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from stabledrl.data.rewarding import resolve_rewards
from stabledrl.data.sources import Source
from stabledrl.errors import UserInputError
from stabledrl.protocols import RewardFunction, Split, Task


class DatasetTask(Task):
    """Reads a split when it is first asked for, and turns each record into a row.

    Args:
        name: Names the task in metrics.
        sources: What each split is read from; an absent one has no rows.
        sizes: How many rows of a split are used, from its start; None for all.
        rewards: The first one decides accuracy.
        reward_weights: One per reward; None weighs all by 1.

    Raises:
        UserInputError: A size is below 1, or there are no rewards, or not as many weights.
    """

    def __init__(
        self,
        name: str,
        sources: Mapping[Split, Sequence[Source]],
        sizes: Mapping[Split, int | None],
        rewards: list[RewardFunction],
        reward_weights: list[float] | None = None,
    ) -> None:
        for split, size in sizes.items():
            if size is not None and size < 1:
                raise UserInputError(f"{split}_size {size} must be at least 1, or null for all rows")
        if not rewards:
            raise UserInputError("rewards is empty: a task needs at least one")
        self.name = name
        self.sources = sources
        self.sizes = sizes
        self.rewards, self.reward_weights = resolve_rewards(rewards[0], rewards, reward_weights)
        self._rows: dict[Split, list[dict[str, Any]]] = {}

    @abstractmethod
    def expected_columns(self, split: Split) -> set[str]:
        """Columns that a record of a split must have, with a value."""
        ...

    @abstractmethod
    def make_row(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        """Turns a record of the data set into a row; None drops it, as one without a gold answer."""
        ...

    @override
    def rows(self, split: Split) -> Sequence[Mapping[str, Any]]:
        """Rows of a split.

        Raises:
            UserInputError: The data cannot be read, lacks a column, or has no usable row.
        """
        if split not in self._rows:
            made = [row for source in self.sources.get(split, ()) for row in self._read(source, split)]
            self._rows[split] = made[: self.sizes.get(split)]
        return self._rows[split]

    def select(self, records: list[dict[str, Any]], split: Split) -> list[dict[str, Any]]:
        """The records of a source that belong to a split: all of them."""
        return records

    def _read(self, source: Source, split: Split) -> list[dict[str, Any]]:
        records = source.read()
        where = f"task {self.name!r}: {source}"
        if not records:
            raise UserInputError(f"{where} has no rows")
        check_records(records, self.expected_columns(split), where)
        selected = self.select(records, split)
        made = [row for row in map(self.make_row, selected) if row is not None]
        if not made:
            raise UserInputError(f"{where} has no row left of {len(selected)} after the filter 'has a gold answer'")
        if dropped := len(selected) - len(made):
            rank_zero_warn(f"{where}: {dropped} of {len(selected)} rows dropped, without a gold answer")
        return made


def check_records(records: Iterable[Mapping[str, Any]], expected: set[str], where: str) -> None:
    """Checks that every record has a value in each column that is needed.

    Raises:
        UserInputError: A column is absent, empty, or was turned into dates while it was read.
    """
    for index, record in enumerate(records):
        if missing := sorted(expected - record.keys()):
            raise UserInputError(
                f"{where} lacks column {', '.join(missing)}; found: {', '.join(sorted(record))}; expected: "
                f"{', '.join(sorted(expected))}"
            )
        for name in sorted(expected):
            if record[name] is None:
                raise UserInputError(f"{where} has no value in column {name} of row {index}")
            if isinstance(record[name], date):
                raise UserInputError(
                    f"{where}: column {name} looked like dates and was converted; store it as text in a CSV or Parquet "
                    f"file"
                )
