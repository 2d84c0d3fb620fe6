"""Tasks and how their prompts reach the training loop."""

from stabledrl.data.countdown import Countdown
from stabledrl.data.datamodule import PromptDataModule
from stabledrl.data.demonstrations import DemonstrationDataModule
from stabledrl.data.sudoku import Sudoku

__all__ = ["Countdown", "DemonstrationDataModule", "PromptDataModule", "Sudoku"]
