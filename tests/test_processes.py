"""Shares of the rows, failures that end all processes, sums over processes."""

import itertools

import pytest
import torch
from tests.processes import WaitsForEverError, in_threads

from stabledrl.errors import UserInputError
from stabledrl.objectives.importance import group_log_sum_exp
from stabledrl.processes import (
    Processes,
    ProcessFailedError,
    check_shares,
    combine_log_sums,
    is_first_to_tell,
)


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_shares_cover_all_rows_once_and_in_order(count: int) -> None:
    rows = list(range(12))
    shares = [rows[Processes(rank=rank, count=count).share(12)] for rank in range(count)]
    assert list(itertools.chain(*shares)) == rows
    assert len({len(share) for share in shares}) == 1


def test_one_process_is_alone_without_a_process_group() -> None:
    own = Processes.of_run()
    assert (own.rank, own.count, own.exchange("x")) == (0, 1, ["x"])


def test_everyone_gets_all_results() -> None:
    results = in_threads(3, lambda processes: processes.together(lambda: processes.rank * 10, "a test"))
    assert results == [[0, 10, 20]] * 3


@pytest.mark.parametrize(("raised", "expected"), [(OSError("gone"), ProcessFailedError), (UserInputError("no"), None)])
def test_where_one_fails_all_fail_with_one_message(raised: Exception, expected: type[Exception] | None) -> None:
    def work(processes: Processes) -> None:
        def fail() -> None:
            if processes.rank == 1:
                raise raised

        processes.together(fail, "prompt 7")

    results = in_threads(3, work)
    assert {type(error) for error in results} == {expected or UserInputError}
    assert {str(error) for error in results} == {f"process 1 of 3, prompt 7: {type(raised).__name__}: {raised}"}
    assert [error.__cause__ for error in results] == [None, raised, None]


def test_of_several_failures_the_first_process_is_named() -> None:
    def work(processes: Processes) -> None:
        def fail() -> None:
            if processes.rank > 0:
                raise OSError(f"disk {processes.rank}")

        processes.together(fail, "writing")

    assert {str(error) for error in in_threads(3, work)} == {"process 1 of 3, writing: OSError: disk 1"}


def test_alone_an_error_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        Processes().together(lambda: 1 // 0, "a test")


def test_outside_of_together_the_others_would_wait() -> None:
    def work(processes: Processes) -> list[int]:
        if processes.rank == 1:
            raise OSError("gone")
        return processes.exchange(processes.rank)

    first, second = in_threads(2, work)
    assert isinstance(first, WaitsForEverError)
    assert isinstance(second, OSError)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_log_sums_of_parts_combine_to_that_of_the_whole(count: int) -> None:
    log_ratio, groups = torch.randn(8) * 50, torch.tensor([0, 0, 0, 1, 1, 1, 3, 3])  # group 2 has no rows
    whole = group_log_sum_exp(log_ratio, groups, 4)

    def work(processes: Processes) -> torch.Tensor:
        rows = processes.share(8)
        return combine_log_sums(processes, group_log_sum_exp(log_ratio[rows], groups[rows], 4))

    for combined in in_threads(count, work):
        torch.testing.assert_close(combined, whole)
    assert whole[2] == -torch.inf


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((3, 4, 8, 1), "3 x group_size 4 = 12 completions .* by 8 processes; use a multiple of 2 prompts"),
        ((3, 5, 4, 1), "15 completions .* by 4 processes; use a multiple of 4 prompts"),
        ((2, 4, 2, 3), r"accumulate_grad_batches 3 .* 4 completions per process \(2 of them\); valid: 1, 2, 4"),
        ((2, 4, 1, 3), "accumulate_grad_batches 3 does not divide the rollout's 8 completions; valid: 1, 2, 4, 8"),
    ],
)
def test_shares_that_do_not_go_round_are_refused_with_values_that_do(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        check_shares(*sizes)


@pytest.mark.parametrize("sizes", [(2, 4, 8, 1), (4, 5, 4, 5), (2, 4, 2, 4), (1, 4, 2, 2), (3, 4, 1, 4)])
def test_shares_that_go_round_are_accepted(sizes: tuple[int, ...]) -> None:
    check_shares(*sizes)


@pytest.mark.parametrize(("variable", "own"), [("LOCAL_RANK", "0"), ("LOCAL_RANK", "1"), ("SLURM_LOCALID", "2")])
def test_before_processes_know_each_other_the_first_of_a_node_tells(
    monkeypatch: pytest.MonkeyPatch, variable: str, own: str
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert is_first_to_tell(UserInputError("bad"))
    monkeypatch.setenv(variable, own)
    assert is_first_to_tell(UserInputError("bad")) == (own == "0")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> torch.distributed.HashStore:
    """Of a process group whose processes are this one."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", lambda: store)
    return store


def test_an_error_that_several_processes_have_is_told_by_one(store: torch.distributed.HashStore) -> None:
    assert [is_first_to_tell(UserInputError("bad")) for _ in range(4)] == [True, False, False, False]
    # Others are errors of their own.
    assert [is_first_to_tell(error) for error in (UserInputError("worse"), OSError("bad"))] == [True, True]


def test_whoever_cannot_ask_the_others_tells(
    store: torch.distributed.HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*arguments: object) -> int:
        raise torch.distributed.DistNetworkError("connection reset by peer")

    monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", gone)
    assert [is_first_to_tell(UserInputError("bad")) for _ in range(2)] == [True, True]
