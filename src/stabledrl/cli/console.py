"""What does not belong on a user's console."""

import contextlib
import logging
import warnings
from collections.abc import Iterator

from lightning_utilities.core import rank_zero

_WARNINGS = (
    r".*isinstance\(treespec, LeafSpec\).*",  # Lightning's own use of torch.
    r".*in eval mode at the start of training.*",  # On purpose: ratios need a policy without dropout.
    r".*The dirpath has changed.*",  # Every run has a directory of its own, a resumed one too.
    r".*does not have many workers.*",  # Prompts are encoded once and kept in memory.
)
_MESSAGES = ("litlogger", "TPU available", "Restoring states from", "Loaded model weights")


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not any(part in record.getMessage() for part in _MESSAGES)


@contextlib.contextmanager
def quiet_console() -> Iterator[None]:
    """Leaves out advertisements and notes on other libraries' inner affairs; everything else stays."""
    logger, unwanted = rank_zero.log, _Filter()
    logger.addFilter(unwanted)
    with warnings.catch_warnings():
        for pattern in _WARNINGS:
            warnings.filterwarnings("ignore", message=pattern)
        try:
            yield
        finally:
            logger.removeFilter(unwanted)
