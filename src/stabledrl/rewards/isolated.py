"""Runs a reward that may hang, crash or leak in processes of its own."""

import inspect
import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from typing_extensions import override

from stabledrl.errors import UserInputError
from stabledrl.grade import Grade, Reward, RewardFunction
from stabledrl.rewards.calling import as_grade, call_reward, check_values, settle
from stabledrl.rewards.graded import RewardError, completion_text
from stabledrl.rewards.signatures import reward_name
from stabledrl.rewards.worker_pool import Outcome, WorkerPool, WorkerStartError, check_limits


class Isolated(Reward):
    """Another reward, in processes that are killed at a deadline.

    A completion whose process hangs or dies has no verdict (score None, with the reason); the process is replaced and
    the run goes on. It goes by the name of the reward inside.

    Args:
        reward: A function or class by import path. It must be importable from a module, not from the main script.
        deadline: Seconds that one call may take.
        batch_deadline: Seconds that a batch may take; what is then unfinished has no verdict. Keep it below the timeout
            of collectives when training on several devices.
        workers: Processes.
        one_by_one: Call it for each completion alone, so that one that hangs costs no other. False gives it the whole
            batch in one call, as a reward needs that compares completions.
        on_error: Where it raises: `stop` the run, or `skip` the completion, which then has no verdict.

    Raises:
        UserInputError: A deadline or the number of workers is out of range, or the reward cannot be sent to a process.

    Example:
        In YAML, a function `my_rewards.judge` that gets 20 seconds::

            rewards:
              - class_path: stabledrl.rewards.Isolated
                init_args: {reward: my_rewards.judge, deadline: 20}
    """

    def __init__(
        self,
        reward: RewardFunction,
        deadline: float = 10.0,
        *,
        batch_deadline: float = 300.0,
        workers: int = 1,
        one_by_one: bool = True,
        on_error: Literal["stop", "skip"] = "stop",
    ) -> None:
        check_limits(deadline, batch_deadline, workers)
        self.__name__ = reward_name(reward)
        # What it asks for is what the reward inside asks for.
        self.__wrapped__ = reward
        try:
            pickle.dumps(reward)
        except Exception as error:
            raise UserInputError(f"reward {self.__name__} must be importable from a module: {error}") from error
        self.deadline = deadline
        self.batch_deadline = batch_deadline
        self.workers = workers
        self.one_by_one = one_by_one
        self.on_error = on_error
        self._pool: WorkerPool | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the processes, of which a copy makes its own."""
        return {**self.__dict__, "_pool": None}

    @override
    def __call__(self, prompts: list[Any], completions: list[Any], **columns: list[Any]) -> list[float | None]:
        return [grade.score for grade in self.explain(prompts, completions, **columns)]

    def explain(self, prompts: list[Any], completions: list[Any], **columns: list[Any]) -> list[Grade]:
        """Calls the reward inside.

        Args:
            prompts: As for any reward.
            completions: As for any reward.
            **columns: As for any reward.

        Returns:
            A verdict per completion, with the reason where there is none.

        Raises:
            RewardError: The reward raises, and `on_error` says stop; or its module cannot be imported.
            UserInputError: It returns a list of another length, or something else than numbers and None.
        """
        size = 1 if self.one_by_one else max(1, len(completions))
        parts = [slice(start, start + size) for start in range(0, len(completions), size)]
        calls = [
            (self.__wrapped__, prompts[part], completions[part], {name: own[part] for name, own in columns.items()})
            for part in parts
        ]
        try:
            outcomes = self._processes().run(_call, calls, deadline=self.deadline, batch_deadline=self.batch_deadline)
        except WorkerStartError as error:
            raise RewardError(f"reward {self.__name__}: {error}", error.details) from error
        grades = []
        for part, outcome in zip(parts, outcomes):
            grades += self._grades(outcome, part.start, [completion_text(text) for text in completions[part]])
        return grades

    def warm_up(self) -> None:
        """Starts the processes, without waiting for them."""
        self._processes().warm_up()

    def _processes(self) -> WorkerPool:
        if self._pool is None:
            self._pool = WorkerPool(self.workers, partial(_import, self.__wrapped__))
        return self._pool

    def _grades(self, outcome: Outcome, first: int, texts: Sequence[str]) -> list[Grade]:
        name = self.__name__
        if outcome.failure is None:
            return [as_grade(value, name) for value in check_values(outcome.value, name, len(texts))]
        if outcome.failure == "raised" and self.on_error == "stop":
            samples = (
                f"sample {first}" if len(texts) == 1 else f"samples {first} to {first + len(texts) - 1}, the first"
            )
            message = f"reward {name} raised {outcome.reason} on {samples}: {texts[0][:200]!r}"
            raise RewardError(message, outcome.traceback)
        raised = "raised " if outcome.failure == "raised" else ""
        return [Grade(correct=None, score=None, answer=None, reason=f"{name} {raised}{outcome.reason}")] * len(texts)


def _import(reward: RewardFunction) -> None:
    """Nothing: that a process got this far means that the reward's module is imported there."""


def _call(reward: RewardFunction, prompts: list[Any], completions: list[Any], columns: dict[str, list[Any]]) -> Any:
    """What a worker does. Numbers of other libraries become plain ones, which we can read without the library."""
    values = call_reward(reward, prompts, completions, columns)
    if inspect.isawaitable(values):
        (values,) = settle([values])
        if isinstance(values, BaseException):
            raise values
    if not hasattr(values, "__iter__"):
        return values
    return [value.item() if hasattr(value, "item") else value for value in values]
