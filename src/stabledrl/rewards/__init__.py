"""Rewards: one grader serves training and evaluation. Nothing here imports torch."""

from stabledrl.rewards.countdown import CountdownEquation
from stabledrl.rewards.format_tags import FormatTags
from stabledrl.rewards.graded import GradedReward, RewardError
from stabledrl.rewards.isolated import Isolated
from stabledrl.rewards.math_answer import MathAnswer
from stabledrl.rewards.overlong import OverlongPenalty
from stabledrl.rewards.scoring import ScoredCompletions, score_completions
from stabledrl.rewards.sudoku import SudokuGrid

__all__ = [
    "CountdownEquation",
    "FormatTags",
    "GradedReward",
    "Isolated",
    "MathAnswer",
    "OverlongPenalty",
    "RewardError",
    "ScoredCompletions",
    "SudokuGrid",
    "score_completions",
]
