"""One of two processes: `python -m tests.distributed.worker STRATEGY DIRECTORY CHECK...`, started by `launch`."""

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.distributed.scenarios import SCENARIOS, local, run, supervised
from tests.training import Digits, Once, Scripted, level, scale_gradient, small_digits, tiny_sampler
from torch import Tensor, distributed

from stabledrl.backbones.lora import LoRA
from stabledrl.callbacks import GroupRollout, RewardCollapseMonitor
from stabledrl.errors import UserInputError
from stabledrl.protocols import Sampler
from stabledrl.samplers import SemiAutoregressiveSampler
from stabledrl.strategies import FSDP, FSDP2
from stabledrl.types import Completions

Train = Callable[..., tuple[dict[str, Any], Any]]


def rank() -> int:
    return distributed.get_rank()


def losses(train: Train, directory: Path, *names: str) -> dict[str, Any]:
    return {name: train(directory / name, **SCENARIOS[name])[0] for name in names or SCENARIOS}


def resume(train: Train, directory: Path) -> dict[str, Any]:
    """6 updates, and 3 then 3: the third is inside of the second rollout."""
    options = SCENARIOS["split groups"]
    whole, _ = train(directory / "whole", **options)
    train(directory / "half", steps=3, **options)
    rest, _ = train(directory / "rest", resume=directory / "half" / "last.ckpt", **options)
    return {"whole": whole, "rest": rest}


def go_on(train: Train, directory: Path, checkpoint: str) -> dict[str, Any]:
    """From step 3 of the scenario of `resume`, whoever trained it up to there."""
    return train(directory, resume=Path(checkpoint), **SCENARIOS["split groups"])[0]


def half(train: Train, directory: Path) -> dict[str, Any]:
    """The first 3 updates of the scenario of `resume`."""
    return train(directory, steps=3, **SCENARIOS["split groups"])[0]


def refused(train: Train, directory: Path, checkpoint: str) -> str:
    """What is said of a checkpoint that cannot be gone on from."""
    try:
        go_on(train, directory, checkpoint)
    except UserInputError as error:
        return str(error)
    return "not refused"


def full_disk(train: Train, directory: Path, full: str) -> str:
    """One process can write no large file from the fourth update on; the third is saved."""
    half(train, directory)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(trainer: Any, module: Any) -> None:
        if rank() == int(full):
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))

    try:
        train(directory, Once(fill, 3), resume=directory / "last.ckpt", **SCENARIOS["split groups"])
    except UserInputError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return "not refused"


def demonstrations(train: Train, directory: Path) -> dict[str, Any]:
    """Supervised training; not by `train`, which is for rollouts."""
    count = int(os.environ["WORLD_SIZE"])
    return supervised(strategy=STRATEGIES[sys.argv[1]](), devices=count)


class Uneven(Sampler):
    """Needs more forward passes on the second process."""

    provides = frozenset()
    completion_length = 4

    def __call__(self, forward: Any, prompt_ids: Tensor, prompt_mask: Tensor, **options: Any) -> Completions:
        for _ in range(5 * rank()):
            forward(prompt_ids, prompt_mask)
        return tiny_sampler()(forward, prompt_ids, prompt_mask, **options)


def uneven(train: Train, directory: Path) -> dict[str, Any]:
    return train(directory, sampler=Uneven(), **SCENARIOS["whole groups"])[0]


def gathers(train: Train, directory: Path) -> dict[int, list[int]]:
    """How often weights were gathered in each rollout, by the number of denoising steps."""
    return {steps: _gathers(train, directory / str(steps), steps) for steps in (1, 4)}


def _gathers(train: Train, directory: Path, denoising_steps: int) -> list[int]:
    counts: list[int] = []
    calls = 0
    names = ("all_gather", "all_gather_single", "all_gather_into_tensor")
    patched = {name: getattr(distributed, name) for name in names if hasattr(distributed, name)}

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*arguments, **options)

        return count

    collect = GroupRollout._collect

    def counted(*arguments: Any) -> Any:
        before = calls
        experience = collect(*arguments)
        counts.append(calls - before)
        return experience

    sampler = SemiAutoregressiveSampler(completion_length=4, block_size=4, denoising_steps=denoising_steps)
    try:
        for name, function in patched.items():
            setattr(distributed, name, counting(function))
        GroupRollout._collect = counted  # type: ignore[method-assign]
        train(directory, sampler=sampler, **SCENARIOS["whole groups"])
    finally:
        GroupRollout._collect = collect  # type: ignore[method-assign]
        for name, function in patched.items():
            setattr(distributed, name, function)
    return counts


def reference(train: Train, directory: Path) -> dict[str, Any]:
    _, module = train(directory, steps=2, **SCENARIOS["whole groups"])
    parameters = list(module.reference.parameters())
    return {
        "whole": sum(parameter.numel() for parameter in parameters),
        "here": sum(local(parameter).numel() for parameter in parameters),
    }


def broken_gradient(train: Train, directory: Path) -> dict[str, Any]:
    """One process alone has a gradient that is not finite, at the second update."""
    callbacks = [Once(scale_gradient(float("nan")), 1)] if rank() == 1 else []
    return train(directory, *callbacks, **SCENARIOS["whole groups"])[0]


def collapse(train: Train, directory: Path) -> dict[str, Any]:
    monitor = RewardCollapseMonitor(window=2, max_drop=0.3, action="rollback", save_every_n_rollouts=1)
    script = Scripted(*(level(mean) for mean in (0.8, 0.8, 0.8, 0.1, 0.8)))
    options = {"updates": 1, "steps": 5, "prompts": 2, "tasks": [Digits(script)]}
    return {**train(directory, monitor, **options)[0], "rollbacks": monitor.rollbacks}


class BreaksOff(Sampler):
    """The second process cannot sample."""

    provides = frozenset()
    completion_length = 4

    def __call__(self, *arguments: Any, **options: Any) -> Completions:
        if rank() == 1:
            raise FloatingPointError("no finite logits in rows [2]")
        return tiny_sampler()(*arguments, **options)


def one_process_raises(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    if rank() == 0:
        raise UserInputError("column 'gold' is empty")
    return small_digits(prompts, completions)


def adapters(train: Train, directory: Path) -> dict[str, Any]:
    """A run of adapters, its first update alone, and the same in two parts."""
    options = {"lora": LoRA(rank=2, alpha=4, dropout=0.1), **SCENARIOS["split groups"]}
    whole, module = train(directory / "whole", **options)
    trained = [parameter.requires_grad for parameter in module.trainer.model.parameters()]
    first, _ = train(directory / "first", steps=1, **options)
    train(directory / "half", steps=3, **options)
    rest, _ = train(directory / "rest", resume=directory / "half" / "last.ckpt", **options)
    return {"whole": whole, "first": first, "rest": rest, "trained": trained}


def faults(train: Train, directory: Path) -> dict[str, tuple[str, str]]:
    found = {}
    for name, options in {
        "sampling": {"sampler": BreaksOff()},
        "grading": {"tasks": [Digits(one_process_raises)]},
    }.items():
        try:
            train(directory / name, **options, **SCENARIOS["whole groups"])
        except Exception as error:
            found[name] = (type(error).__name__, str(error))
    return found


CHECKS: dict[str, Callable[..., Any]] = {
    check.__name__: check
    for check in (
        losses,
        resume,
        go_on,
        half,
        refused,
        full_disk,
        demonstrations,
        uneven,
        gathers,
        reference,
        broken_gradient,
        collapse,
        adapters,
        faults,
    )
}
STRATEGIES: dict[str, Callable[[], Any]] = {
    "ddp": lambda: "ddp",
    "fsdp": FSDP,
    "fsdp2": FSDP2,
    "fsdp-sharded": lambda: FSDP(state_dict_type="sharded"),
    "fsdp2-sharded": lambda: FSDP2(save_distributed_checkpoint=True),
}


def leave_full_states_where_they_are() -> None:
    """A full state that is on the CPU already, and is to be moved there, ends FSDP1 with a crash."""
    for name in ("FullStateDictConfig", "FullOptimStateDictConfig"):
        original = getattr(distributed.fsdp.api, name)
        for module in (distributed.fsdp, distributed.fsdp.api):
            setattr(module, name, lambda original=original, **options: original(**{**options, "offload_to_cpu": False}))


def main(strategy: str, directory: Path, *checks: str) -> None:
    torch.set_num_threads(1)
    count = int(os.environ["WORLD_SIZE"])
    leave_full_states_where_they_are()

    def train(place: Path, *callbacks: Any, **options: Any) -> tuple[dict[str, Any], Any]:
        return run(place, *callbacks, strategy=STRATEGIES[strategy](), devices=count, **options)

    results: dict[str, Any] = {}
    for check in checks:
        name, *arguments = check.split(":")
        results[name] = CHECKS[name](train, directory / name, *arguments)
    torch.save(results, directory / f"rank{rank()}.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
