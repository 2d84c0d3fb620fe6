"""The processes of a run: which share of the rows each takes, and what they tell each other.

Whatever needs other processes takes a `Processes`, so that it can be run and tested in one.
"""

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch import distributed

from stabledrl.errors import UserInputError

T = TypeVar("T")


class ProcessFailedError(RuntimeError):
    """A process of the run failed; all end with this message, which names the process and what it worked on."""


def _alone(own: Any) -> list[Any]:
    return [own]


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process among those of the run.

    Attributes:
        rank: Number of this process, from 0.
        count: How many there are.
        exchange: Gives every process the objects of all, by rank. All have to call it together; tensors have to be on
            the CPU.
    """

    rank: int = 0
    count: int = 1
    exchange: Callable[[Any], list[Any]] = _alone

    @classmethod
    def of_run(cls) -> Self:
        """Those of torch's process group; a single one where there is none."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return cls()
        return cls(rank=distributed.get_rank(), count=distributed.get_world_size(), exchange=_all_gather)

    def share(self, rows: int) -> slice:
        """This process's share of rows, all shares being of one size."""
        assert rows % self.count == 0, f"{rows} rows do not go round {self.count} processes"
        size = rows // self.count
        return slice(self.rank * size, (self.rank + 1) * size)

    def together(self, work: Callable[[], T], subject: str) -> list[T]:
        """Does something that may fail on some processes alone: then it fails on all.

        Without this, the others would wait in their next collective for a process that has ended.

        Args:
            work: This process's part. It must not wait for other processes; its result can be exchanged.
            subject: What the part is about, for the message.

        Returns:
            The results by rank.

        Raises:
            ProcessFailedError: Several processes, and the work raised on one of them. Names the first such.
            UserInputError: The same where the error was one.
        """
        if self.count == 1:
            return [work()]
        result, failure = None, None
        try:
            result = work()
        except Exception as error:
            failure = error
        report = failure and (f"{subject}: {type(failure).__name__}: {failure}", isinstance(failure, UserInputError))
        outcomes = self.exchange((result, report))
        for rank, (_, told) in enumerate(outcomes):
            if told is not None:
                message, by_user = told
                kind = UserInputError if by_user else ProcessFailedError
                raise kind(f"process {rank} of {self.count}, {message}") from failure
        return [own for own, _ in outcomes]


def is_first_to_tell(error: BaseException) -> bool:
    """Whether this process is the first of the run that has an error, so that it is told once and not by all.

    Before the processes know each other, it is the first one of each node: all have read the same settings.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))) == 0
    key = hashlib.sha256(f"{type(error).__name__}: {error}".encode()).hexdigest()
    try:
        return int(distributed.distributed_c10d._get_default_store().add(f"stabledrl/told/{key}", 1)) == 1
    except RuntimeError:
        return True  # The process that counts has ended already.


def _all_gather(own: Any) -> list[Any]:
    everyone: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everyone, own)
    return everyone


def combine_log_sums(processes: Processes, own: torch.Tensor) -> torch.Tensor:
    """Log of the sum, over processes, of exponentials: combines what `log_normalizers` says of parts of the groups.

    Args:
        processes: All of them call this.
        own: Any shape, the same on all.

    Returns:
        Same shape and device; -inf where it is so on all.
    """
    if processes.count == 1:
        return own
    return torch.stack(processes.exchange(own.detach().cpu())).logsumexp(dim=0).to(own.device)


def check_shares(prompts: int, group_size: int, processes: int, micro_batches: int) -> None:
    """Checks that every micro-batch of every process gets as many completions as the others.

    Raises:
        UserInputError: They do not; the message names values that would do.
    """
    rows = prompts * group_size
    if rows % processes:
        unit = processes // math.gcd(processes, group_size)
        raise UserInputError(
            f"prompts_per_rollout {prompts} x group_size {group_size} = {rows} completions cannot be shared evenly by "
            f"{processes} processes; use a multiple of {unit} prompts"
        )
    own = rows // processes
    if own % micro_batches:
        valid = ", ".join(str(n) for n in range(1, own + 1) if own % n == 0)
        per_process = f" per process ({processes} of them)" if processes > 1 else ""
        raise UserInputError(
            f"accumulate_grad_batches {micro_batches} does not divide the rollout's {own} completions{per_process}; "
            f"valid: {valid}"
        )
