"""Rewards: one grader serves training and evaluation. Nothing here imports torch."""

from stabledrl.rewards.countdown import CountdownEquation
from stabledrl.rewards.graded import GradedReward
from stabledrl.rewards.scoring import RewardError, ScoredCompletions, score_completions
from stabledrl.rewards.sudoku import SudokuGrid

__all__ = [
    "CountdownEquation",
    "GradedReward",
    "RewardError",
    "ScoredCompletions",
    "SudokuGrid",
    "score_completions",
]
