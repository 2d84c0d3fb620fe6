"""4x4 Sudoku with unique solutions, generated; held-out grids never occur in training."""

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from typing_extensions import override

from stabledrl.data.rewarding import resolve_rewards
from stabledrl.errors import UserInputError
from stabledrl.protocols import RewardFunction, Split, Task
from stabledrl.rewards.sudoku import SudokuGrid
from stabledrl.rewards.sudoku_grids import CELLS, all_grids, solutions

PromptStyle = Literal["compact", "instruction"]

HELD_OUT_GRIDS = 64
_MOST_MISSES = 20_000
_INSTRUCTION = (
    "Solve this 4x4 Sudoku. Every row, every column and every 2x2 box holds the digits 1 to 4 once. The puzzle is "
    "given row by row as 16 digits, 0 is an empty cell: {puzzle}\nThink step by step, then give all 16 digits of the "
    "solved grid, row by row, between <answer> and </answer>."
)


class Sudoku(Task):
    """Puzzles of 16 digits. The 288 grids are split once and for all: 64 are held out, 224 make training puzzles.

    Args:
        train_size: Training puzzles.
        evaluation_size: Held-out puzzles.
        min_empty: Fewest empty cells.
        max_empty: Most empty cells; above 10 unique solutions are rare.
        prompt_style: `compact` is the puzzle and "=", answered by 16 digits; `instruction` is a chat that asks for
            <answer> tags.
        rewards: Instead of the task's own grader.
        reward_weights: One per reward.
        seed: Seed of the puzzles. It does not change which grids are held out.
        name: Names the task in metrics.

    Raises:
        UserInputError: A value is out of range.
    """

    def __init__(
        self,
        train_size: int = 4000,
        evaluation_size: int = 128,
        *,
        min_empty: int = 6,
        max_empty: int = 9,
        prompt_style: PromptStyle = "compact",
        rewards: list[RewardFunction] | None = None,
        reward_weights: list[float] | None = None,
        seed: int = 0,
        name: str = "sudoku",
    ) -> None:
        if not 1 <= min_empty <= max_empty <= 12:
            raise UserInputError(f"min_empty {min_empty} and max_empty {max_empty} must satisfy 1 <= min <= max <= 12")
        if train_size < 1 or evaluation_size < 1:
            raise UserInputError(f"train_size {train_size} and evaluation_size {evaluation_size} must be at least 1")
        self.name = name
        self.sizes = {"train": train_size, "evaluation": evaluation_size}
        self.empty = (min_empty, max_empty)
        self.prompt_style = prompt_style
        self.seed = seed
        grader = SudokuGrid(answer_format="bare" if prompt_style == "compact" else "tags")
        self.rewards, self.reward_weights = resolve_rewards(grader, rewards, reward_weights)

    @override
    def rows(self, split: Split) -> Sequence[Mapping[str, Any]]:
        return [self._row(puzzle) for puzzle in make_puzzles(split, self.sizes[split], *self.empty, self.seed)]

    def _row(self, puzzle: str) -> dict[str, Any]:
        solution = solutions(puzzle)[0]
        if self.prompt_style == "compact":
            shown: Any = f"{puzzle}="
            texts = (solution, weak_demonstration(puzzle))
        else:
            shown = [{"role": "user", "content": _INSTRUCTION.format(puzzle=puzzle)}]
            texts = (f"<answer>{solution}</answer>", f"<answer>{weak_demonstration(puzzle)}</answer>")
        return {"prompt": shown, "puzzle": puzzle, "completion": texts[0], "weak_completion": texts[1]}


@functools.lru_cache(maxsize=8)
def make_puzzles(split: Split, size: int, min_empty: int, max_empty: int, seed: int) -> tuple[str, ...]:
    """Makes puzzles with exactly one solution, from one side of the split of all grids.

    Args:
        split: Which side.
        size: How many.
        min_empty: Fewest empty cells.
        max_empty: Most empty cells.
        seed: Seed.

    Returns:
        The puzzles. Those for evaluation are distinct; in training a puzzle may come twice.

    Raises:
        UserInputError: There are fewer distinct puzzles for evaluation.
    """
    grids = list(all_grids())
    # A fixed order, so that no seed moves a grid across the split.
    random.Random(0).shuffle(grids)
    side = grids[:HELD_OUT_GRIDS] if split == "evaluation" else grids[HELD_OUT_GRIDS:]
    generator = random.Random(f"{split}-{seed}")
    puzzles: list[str] = []
    misses = 0
    while len(puzzles) < size:
        grid = generator.choice(side)
        empty = generator.sample(range(CELLS), generator.randint(min_empty, max_empty))
        puzzle = "".join("0" if cell in empty else digit for cell, digit in enumerate(grid))
        if len(solutions(puzzle)) == 1 and (split == "train" or puzzle not in puzzles):
            puzzles.append(puzzle)
            misses = 0
        elif (misses := misses + 1) == _MOST_MISSES:
            raise UserInputError(
                f"found {len(puzzles)} distinct puzzles with {min_empty} to {max_empty} empty cells for {split}, "
                f"fewer than the {size} asked for"
            )
    return tuple(puzzles)


def weak_demonstration(puzzle: str) -> str:
    """A poor answer: every row's missing digits filled in in ascending order, without a look at columns and boxes."""
    answer = ""
    for start in range(0, CELLS, 4):
        row = puzzle[start : start + 4]
        missing = iter(sorted(set("1234") - set(row)))
        answer += "".join(next(missing) if digit == "0" else digit for digit in row)
    return answer
