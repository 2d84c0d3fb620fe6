"""Several processes make one rollout: the same as a single one, or none at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.experiences import collector, prompts
from tests.processes import in_threads
from tests.training import Digits, Fixed, same, tiny_policy

from stabledrl.errors import UserInputError
from stabledrl.experience import Experience
from stabledrl.processes import Processes, ProcessFailedError


# Of 2 prompts with 3 completions, two processes hold a group each, three and six hold parts.
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_processes_together_collect_what_one_does(count: int) -> None:
    own, batch, policy, reference = collector(), prompts(5, 2), tiny_policy(), tiny_policy(seed=1)
    whole = own.collect(batch, policy, reference=reference)

    def work(processes: Processes) -> Experience:
        return own.collect(batch, policy, reference=reference, processes=processes)

    for found in in_threads(count, work):
        assert found.samples == whole.samples
        for name in ("group_index", "rewards", "graded", "advantages", "totals"):
            assert same(getattr(found.rollouts, name), getattr(whole.rollouts, name)), name
        assert same(found.rollouts.sequences.state_dict(), whole.rollouts.sequences.state_dict())
        torch.testing.assert_close(found.rollouts.old.elbo, whole.rollouts.old.elbo)
        torch.testing.assert_close(found.rollouts.reference.elbo, whole.rollouts.reference.elbo)
        assert found.metrics.keys() == whole.metrics.keys()
        timed = "rollout/tokens_per_second"
        assert all(found.metrics[name] == pytest.approx(whole.metrics[name]) for name in whole.metrics if name != timed)


def test_each_process_samples_its_share_only() -> None:
    rows: dict[int, int] = {}
    batch, policy = prompts(5, 2), tiny_policy()

    def work(processes: Processes) -> Experience:
        def counted(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
            rows[processes.rank] = len(completions)
            return [0.5] * len(completions)

        return collector(Digits(counted)).collect(batch, policy, processes=processes)

    in_threads(3, work)
    assert rows == {0: 2, 1: 2, 2: 2}


def test_the_share_of_missing_rewards_is_that_of_all_processes() -> None:
    def missing_for_2(prompts: list[str], completions: list[str], **columns: Any) -> list[float | None]:
        return [None if prompt == "2=" else 1.0 for prompt in prompts]

    batch, policy = prompts(5, 2), tiny_policy()

    def results(allowed: float) -> list[Any]:
        own = collector(Digits(missing_for_2), max_ungraded_share=allowed)
        return in_threads(2, lambda processes: own.collect(batch, policy, processes=processes))

    assert all(isinstance(own, Experience) for own in results(0.5))
    errors = results(0.4)
    assert {type(error) for error in errors} == {UserInputError}
    assert len({str(error) for error in errors}) == 1


@pytest.mark.parametrize("place", ["sampling", "grading", "scoring"])
def test_a_process_that_fails_ends_all_with_its_name_and_prompts(place: str) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise MemoryError("full")

    batch, policy = prompts(5, 2), tiny_policy()
    whole = collector(**({"sampler": Fixed(3, 4)} if place == "scoring" else {}))
    cannot_grade = collector(Digits(fail))

    def work(processes: Processes) -> Experience:
        breaks = processes.rank == 1
        own = cannot_grade if breaks and place == "grading" else whole
        return own.collect(batch, fail if breaks and place != "grading" else policy, processes=processes)

    errors = in_threads(2, work)
    assert {type(error) for error in errors} == {ProcessFailedError}
    assert {str(error).partition(": ")[0] for error in errors} == {
        "process 1 of 2, rollout 7, completions of prompts 2"
    }


def test_weights_are_gathered_once_for_sampling_and_scoring_and_once_for_the_reference() -> None:
    entered: list[Any] = []

    @contextmanager
    def gathered(model: Any) -> Iterator[Any]:
        entered.append(model)
        yield model
        entered.append("left")

    policy, reference = tiny_policy(), tiny_policy(seed=1)
    collector(rows_per_forward=1).collect(prompts(5, 2), policy, reference=reference, gathered=gathered)
    assert entered == [policy, "left", reference, "left"]
