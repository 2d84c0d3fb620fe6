"""Reads data sets: from the hub, a local directory in the hub's layout, or files. All go through the same code."""

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stabledrl.errors import UserInputError

DataPath = str | list[str]
"""A hub id, a local directory laid out like a hub data set, or one or several local files of one format."""

_FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".tsv": "csv"}


@dataclass(frozen=True, kw_only=True)
class Source:
    """One split of one data set.

    Attributes:
        path: Where it is.
        split: Name of the split; None takes the only one. Files are one split, whatever it is called.
        configs: Configurations to read one after the other; empty takes the only one. Files have none.
        revision: Branch, tag or commit of a hub data set; None takes the newest.
    """

    path: DataPath
    split: str | None = None
    configs: Sequence[str] = ()
    revision: str | None = None

    @property
    def has_splits(self) -> bool:
        """Whether it has named splits; files have not."""
        return not is_file(self.path)

    def __str__(self) -> str:
        shown = self.path if isinstance(self.path, str) else ", ".join(self.path)
        return f"{shown!r}" if self.split is None or not self.has_splits else f"{shown!r}, split {self.split!r}"

    def read(self) -> list[dict[str, Any]]:
        """Reads all rows.

        Cells of CSV files are text as it stands: `0320` and `NA` are not turned into something else.

        Raises:
            UserInputError: There is no such data, or it cannot be read.
        """
        with _no_progress_bars():
            if not self.has_splits:
                return self._load(*_file_arguments(self.path), None, "train")
            assert isinstance(self.path, str)
            parts = [self._load(self.path, None, config, self.split) for config in self.configs or (None,)]
        return [row for part in parts for row in part]

    def _load(self, path: str, files: list[str] | None, config: str | None, split: str | None) -> list[dict[str, Any]]:
        import datasets  # Takes half a second.
        from datasets.packaged_modules.csv.csv import CsvConfig

        options: dict[str, Any] = {"data_files": files, "revision": self.revision if files is None else None}
        if files and files[0].lower().endswith(".tsv"):
            options["sep"] = "\t"
        try:
            builder = datasets.load_dataset_builder(path, config, **options)
            if isinstance(builder.config, CsvConfig):
                text = {"features": _text_features(builder), "keep_default_na": False}
                builder = datasets.load_dataset_builder(path, config, **options, **text)
            builder.download_and_prepare()
            found: Any = builder.as_dataset()
        except (OSError, ValueError, RuntimeError, StopIteration, datasets.exceptions.DatasetsError) as error:
            raise UserInputError(self._explain(error)) from error
        if split is None and len(found) == 1:
            split = next(iter(found))
        if split not in found:
            raise UserInputError(f"data set {self.path!r} has no split {split!r}; it has {', '.join(found)}")
        rows: list[dict[str, Any]] = found[split].to_list()
        return rows

    def _explain(self, error: BaseException) -> str:
        root = error
        while root.__cause__ is not None:
            root = root.__cause__
        reason = " ".join(str(root).split())[:300] or type(root).__name__
        if not self.has_splits or os.path.exists(str(self.path)):
            return f"cannot read {self.path!r}: {reason}"
        return (
            f"cannot read data set {self.path!r} from the hub: {reason}; give the path of a local copy instead, a "
            f"directory as the hub has it or .parquet, .jsonl, .json or .csv files"
        )


def is_file(path: DataPath) -> bool:
    """Whether a path names files rather than a directory or a hub id."""
    return not isinstance(path, str) or (Path(path).suffix.lower() in _FORMATS and not Path(path).is_dir())


def _file_arguments(path: DataPath) -> tuple[str, list[str]]:
    files = [path] if isinstance(path, str) else list(path)
    formats = {_FORMATS.get(Path(file).suffix.lower()) for file in files}
    if None in formats or len(formats) != 1:
        raise UserInputError(f"files {files} must be of one format: {', '.join(_FORMATS)}")
    if absent := [file for file in files if not Path(file).is_file()]:
        raise UserInputError(f"no data file at {absent[0]!r}")
    return str(formats.pop()), files


def _text_features(builder: Any) -> Any:
    """Every column of a CSV data set as text. The reader would guess, and lose leading zeros."""
    import datasets

    config: Any = builder.config
    files = [file for files in config.data_files.values() for file in files]
    first = datasets.DownloadManager().download(files[0])
    with open(first, newline="", encoding="utf-8-sig") as lines:
        header = next(csv.reader(lines, delimiter=config.sep), [])
    return datasets.Features({name: datasets.Value("string") for name in header})


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    import datasets

    disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not disabled:
            datasets.enable_progress_bars()
