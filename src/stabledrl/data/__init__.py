"""Tasks and how their prompts reach the training loop."""

from stabledrl.data.aime import AIME
from stabledrl.data.countdown import Countdown
from stabledrl.data.datamodule import PromptDataModule
from stabledrl.data.demonstrations import DemonstrationDataModule
from stabledrl.data.gsm8k import GSM8K
from stabledrl.data.math import MATH
from stabledrl.data.reasoning_gym import ReasoningGym
from stabledrl.data.sudoku import Sudoku
from stabledrl.data.table import Table

__all__ = [
    "AIME",
    "GSM8K",
    "MATH",
    "Countdown",
    "DemonstrationDataModule",
    "PromptDataModule",
    "ReasoningGym",
    "Sudoku",
    "Table",
]
