"""How monitors speak: through logging, on one process, every time."""

import logging

from lightning.pytorch.utilities import rank_zero_only
from tqdm.contrib.logging import logging_redirect_tqdm

_log = logging.getLogger("stabledrl")


class TrainingStoppedError(RuntimeError):
    """A monitor ended the run on purpose; the message says what was seen and what to try."""


@rank_zero_only
def alarm(message: str) -> None:
    """Tells the user of something that needs a look. Not a Python warning: those are shown once a place."""
    # A progress bar on the screen is cleared for the message and drawn again below it.
    with logging_redirect_tqdm(loggers=[logging.getLogger()]):
        _log.warning(message)
