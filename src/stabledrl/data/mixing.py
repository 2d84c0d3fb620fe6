"""Mixes tasks by weight, as a function of the rollout's number."""

import functools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import torch

from stabledrl.errors import UserInputError
from stabledrl.randomness import Purpose, fold, uniforms

_MOST_SHARES = 10**6


class TaskMixture:
    """Chooses the prompts of every rollout, each task with its share; a rollout holds no prompt twice.

    With P prompts per rollout and a share w, a task gives floor(P w) or ceil(P w) prompts to each rollout, P w on
    average: systematic sampling, with one random offset per rollout. A task's prompts come from a permutation keyed by
    (seed, task, number of the pass over its prompts). Rollout k is a function of k, so that a run can be resumed.

    Args:
        tasks: Task of every prompt.
        weights: One weight per task, in any unit.
        prompts_per_rollout: P.
        seed: Seed of the order.

    Raises:
        UserInputError: Weights and tasks do not fit, or a task has fewer prompts than a rollout takes of it.
    """

    def __init__(self, tasks: Sequence[str], weights: Mapping[str, float], prompts_per_rollout: int, seed: int) -> None:
        check_weights(weights, dict.fromkeys(tasks))
        self._rows: dict[str, list[int]] = {name: [] for name in weights}
        for row, name in enumerate(tasks):
            self._rows[name].append(row)
        total = sum(map(Fraction, weights.values()))
        # Whole fractions, so that a share that should be whole is.
        shares = [(Fraction(weight) / total).limit_denominator(_MOST_SHARES) for weight in weights.values()]
        edges = [prompts_per_rollout * sum(shares[:count], Fraction(0)) for count in range(len(shares))]
        self._edges = [*edges, Fraction(prompts_per_rollout)]
        self._seed = seed
        for name, takes in zip(weights, self._takes()):
            if len(self._rows[name]) < takes:
                raise UserInputError(
                    f"task {name!r} has {len(self._rows[name])} prompts, fewer than the {takes} that a rollout of "
                    f"{prompts_per_rollout} takes of it; lower its weight {weights[name]} or prompts_per_rollout"
                )

    def _takes(self) -> list[int]:
        """The most that a rollout takes of each task."""
        return [max(1, math.ceil(after - before)) for before, after in zip(self._edges, self._edges[1:])]

    def __call__(self, rollout_index: int) -> list[int]:
        """Numbers of the prompts of a rollout, P of them."""
        key = fold(torch.tensor([self._seed]), rollout_index)
        offset = Fraction(float(uniforms(key, Purpose.DATA, 1, 1)))
        marks = [math.floor(edge + offset) for edge in self._edges]
        chosen: list[int] = []
        for task, (name, takes) in enumerate(zip(self._rows, self._takes())):
            # A block of the permutation is a rollout's; it leaves the last of them out where it takes fewer.
            blocks = len(self._rows[name]) // takes
            turn, block = divmod(rollout_index, blocks)
            order = _permutation(self._seed, task, turn, len(self._rows[name]))
            count = marks[task + 1] - marks[task]
            chosen += [self._rows[name][place] for place in order[block * takes : block * takes + count]]
        return chosen


def check_weights(weights: Mapping[str, float], tasks: Mapping[str, object]) -> None:
    """Checks that every task has a weight above 0.

    Raises:
        UserInputError: It has none, or a weight is of no task.
    """
    if weights.keys() != tasks.keys():
        raise UserInputError(f"task_weights are of {sorted(weights)}; the tasks to train on are {sorted(tasks)}")
    if bad := [weight for weight in weights.values() if not (weight > 0 and math.isfinite(weight))]:
        raise UserInputError(f"task_weights has {bad[0]}: every weight must be a finite number above 0")


@functools.lru_cache(maxsize=64)
def _permutation(seed: int, task: int, turn: int, size: int) -> tuple[int, ...]:
    key = fold(fold(torch.tensor([seed]), turn), task)
    return tuple(uniforms(key, Purpose.DATA, 2, size)[0].argsort(stable=True).tolist())
