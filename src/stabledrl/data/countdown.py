"""Countdown: reach a target with given numbers, generated; held-out puzzles never occur in training."""

import functools
import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from stabledrl.data.rewarding import resolve_rewards
from stabledrl.data.sudoku import PromptStyle
from stabledrl.errors import UserInputError
from stabledrl.protocols import RewardFunction, Split, Task
from stabledrl.rewards.arithmetic import ExpressionError, evaluate, tokenize
from stabledrl.rewards.countdown import CountdownEquation

HELD_OUT_SHARE = 4
_MOST_MISSES = 20_000
_INSTRUCTION = (
    "Using the numbers {numbers}, each exactly once, with {operators} and parentheses, write an expression that equals "
    "{target}.\nThink step by step, then give the expression between <answer> and </answer>."
)


class Countdown(Task):
    """Puzzles with a known solution. One in four (numbers, target) pairs, by a fixed hash, is held out.

    Args:
        count: Numbers per puzzle, 2 to 6.
        max_number: Numbers are drawn from 1 to this.
        operators: Operators a demonstration uses, out of + - * /. The grader accepts all four.
        train_size: Training puzzles, drawn with repetition: with the default shape there are 419 distinct ones.
        evaluation_size: Held-out puzzles, all distinct.
        prompt_style: `compact` is like "3,5,9:11=", answered by the bare expression; `instruction` is a chat that asks
            for <answer> tags.
        rewards: Instead of the task's own grader.
        reward_weights: One per reward.
        seed: Seed of the puzzles. It does not change which are held out.
        name: Names the task in metrics.

    Raises:
        UserInputError: A value is out of range.
    """

    def __init__(
        self,
        count: int = 3,
        max_number: int = 9,
        operators: str = "+-",
        *,
        train_size: int = 4000,
        evaluation_size: int = 128,
        prompt_style: PromptStyle = "compact",
        rewards: list[RewardFunction] | None = None,
        reward_weights: list[float] | None = None,
        seed: int = 0,
        name: str = "countdown",
    ) -> None:
        if not 2 <= count <= 6:
            raise UserInputError(f"count {count} must lie between 2 and 6")
        if max_number < 2:
            raise UserInputError(f"max_number {max_number} must be at least 2")
        if not operators or not set(operators) <= set("+-*/"):
            raise UserInputError(f"operators {operators!r} must be some of + - * /")
        if train_size < 1 or evaluation_size < 1:
            raise UserInputError(f"train_size {train_size} and evaluation_size {evaluation_size} must be at least 1")
        self.name = name
        self.sizes = {"train": train_size, "evaluation": evaluation_size}
        self.shape = (count, max_number, operators)
        self.prompt_style = prompt_style
        self.seed = seed
        grader = CountdownEquation(answer_format="bare" if prompt_style == "compact" else "tags")
        self.rewards, self.reward_weights = resolve_rewards(grader, rewards, reward_weights)

    @override
    def rows(self, split: Split) -> Sequence[Mapping[str, Any]]:
        return [self._row(*puzzle) for puzzle in make_puzzles(split, self.sizes[split], *self.shape, seed=self.seed)]

    def _row(self, numbers: tuple[int, ...], target: int, solution: str) -> dict[str, Any]:
        if self.prompt_style == "compact":
            shown: Any = f"{','.join(map(str, numbers))}:{target}="
        else:
            text = _INSTRUCTION.format(numbers=list(numbers), target=target, operators=" ".join(self.shape[2]))
            shown, solution = [{"role": "user", "content": text}], f"<answer>{solution}</answer>"
        return {"prompt": shown, "numbers": list(numbers), "target": target, "completion": solution}


@functools.lru_cache(maxsize=8)
def make_puzzles(
    split: Split, size: int, count: int, max_number: int, operators: str, *, seed: int
) -> tuple[tuple[tuple[int, ...], int, str], ...]:
    """Makes puzzles from random expressions without parentheses whose value is a whole number above 0.

    Args:
        split: Which side of the split.
        size: How many.
        count: Numbers per puzzle.
        max_number: Largest number.
        operators: Operators.
        seed: Seed.

    Returns:
        (numbers, target, solution) of each.

    Raises:
        UserInputError: There are fewer puzzles of this shape.
    """
    generator = random.Random(f"{split}-{seed}")
    puzzles: list[tuple[tuple[int, ...], int, str]] = []
    taken: set[tuple[tuple[int, ...], int]] = set()
    misses = 0
    while len(puzzles) < size:
        numbers = tuple(generator.randint(1, max_number) for _ in range(count))
        solution = str(numbers[0]) + "".join(f"{generator.choice(operators)}{number}" for number in numbers[1:])
        # Shown in another order than the solution has them.
        shown, target = tuple(sorted(numbers)), _whole(solution)
        if target > 0 and (split == "evaluation") == is_held_out(numbers, target) and (shown, target) not in taken:
            puzzles.append((shown, target, solution))
            if split == "evaluation":
                taken.add((shown, target))
            misses = 0
        elif (misses := misses + 1) == _MOST_MISSES:
            raise UserInputError(
                f"found {len(puzzles)} distinct puzzles of {count} numbers up to {max_number} with {operators!r} for "
                f"{split}, fewer than the {size} asked for"
            )
    return tuple(puzzles)


def _whole(expression: str) -> int:
    """The value of an expression that has a whole one; 0 for others."""
    try:
        value = evaluate(tokenize(expression))
    except ExpressionError:
        return 0
    return value.numerator if value.denominator == 1 else 0


def is_held_out(numbers: Sequence[int], target: int) -> bool:
    """Whether a puzzle belongs to the evaluation split: decided by what it is, not by how it was drawn."""
    key = f"{sorted(numbers)}:{target}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % HELD_OUT_SHARE == 0
