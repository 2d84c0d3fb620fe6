import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rewards import hostile

from stabledrl.rewards.worker_pool import Outcome, WorkerPool, WorkerStartError, shared_pool

LONG = 60.0


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    own = WorkerPool(2, hostile.nothing)
    yield own
    del own
    gc.collect()


def values(outcomes: list[Outcome]) -> list[Any]:
    return [outcome.value if outcome.failure is None else outcome.failure for outcome in outcomes]


def run(
    pool: WorkerPool, function: Callable[..., Any], *calls: Any, deadline: float = LONG, **options: Any
) -> list[Any]:
    return values(pool.run(function, [(call,) for call in calls], deadline=deadline, **options))


def children(process: int | str = "self") -> set[int]:
    """Process ids of living children, dead ones that nobody has waited for too."""
    tasks = Path(f"/proc/{process}/task")
    return {int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()}


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    ends = time.monotonic() + seconds
    while not condition() and time.monotonic() < ends:
        time.sleep(0.02)
    return condition()


def test_results_come_in_the_order_of_the_calls(pool: WorkerPool) -> None:
    assert run(pool, hostile.square, *range(50)) == [number**2 for number in range(50)]
    assert pool.run(hostile.square, [], deadline=1) == []


def test_calls_run_in_parallel_in_other_processes_which_are_reused(pool: WorkerPool) -> None:
    run(pool, hostile.sleep, 0.3, 0.3)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        assert run(pool, hostile.sleep, *[0.3] * 6) == [0.3] * 6
        seconds.append(time.perf_counter() - started)
    assert 0.9 <= min(seconds) < 1.6
    before = children()
    assert set(run(pool, hostile.process_id, *range(20))) <= before
    assert os.getpid() not in before
    assert children() == before


def test_workers_import_no_torch(pool: WorkerPool) -> None:
    assert pool.run(hostile.loaded, [("torch", "lightning", "transformers", "sys")], deadline=LONG)[0].value == ["sys"]


@pytest.mark.parametrize(("function", "endless"), [(hostile.sleep, 1000.0), (hostile.hold_the_interpreter, 60_000)])
def test_a_call_past_its_deadline_is_killed_and_costs_no_other(
    pool: WorkerPool, function: Callable[..., Any], endless: Any
) -> None:
    quick = type(endless)(0)
    before = set(run(pool, hostile.process_id, *range(20)))
    run(pool, hostile.sleep, 0.2, 0.2)
    started = time.perf_counter()
    outcomes = pool.run(function, [(argument,) for argument in [quick, endless, quick, quick]], deadline=0.5)
    assert time.perf_counter() - started < 5
    assert [outcome.failure for outcome in outcomes] == [None, "overdue", None, None]
    assert "0.5 s" in outcomes[1].reason
    assert run(pool, hostile.square, 2, 3) == [4, 9]
    assert len(before & children()) <= 1


def test_a_worker_killed_amid_a_batch_costs_its_call_alone_and_is_replaced(pool: WorkerPool) -> None:
    outcomes = pool.run(hostile.kill_yourself, [(number,) for number in range(20)], deadline=LONG)
    assert [outcome.failure for outcome in outcomes] == [None] * 3 + ["died"] + [None] * 16
    assert "signal 9" in outcomes[3].reason
    assert len(children()) >= 2
    assert set(run(pool, hostile.square, *range(20))) == {number**2 for number in range(20)}


@pytest.mark.parametrize("busy", [False, True])
def test_workers_killed_from_outside_are_replaced(pool: WorkerPool, busy: bool) -> None:
    before = children()
    run(pool, hostile.sleep, 0.2, 0.2)
    own = children() - before
    assert len(own) == 2
    killer = threading.Timer(0.5 if busy else 0, lambda: [os.kill(worker, signal.SIGKILL) for worker in own])
    killer.start()
    if not busy:
        assert wait_for(lambda: not any(map(is_alive, own)))
    outcomes = run(pool, hostile.sleep, *[9.0, 9.0] if busy else [0.1, 0.1])
    killer.join()
    assert outcomes == (["died", "died"] if busy else [0.1, 0.1])
    assert run(pool, hostile.square, 1, 2, 3) == [1, 4, 9]
    assert len(children() - before) == 2
    assert not own & children()


def test_a_death_that_is_noticed_late_still_costs_its_call(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    collect = pool._collect
    noticed: list[int] = []

    def collect_late(batch: Any) -> None:
        busy = [worker.process.pid for worker in pool._workers if worker.call is not None]
        if busy and not noticed:
            assert wait_for(lambda: not is_alive(busy[0]))
            noticed.extend(busy)
        else:
            collect(batch)

    monkeypatch.setattr(pool, "_collect", collect_late)
    assert run(pool, hostile.kill_yourself, 3, deadline=10, batch_deadline=20) == ["died"]
    assert noticed


def test_a_batch_past_its_deadline_is_cut_and_the_next_one_is_whole(pool: WorkerPool) -> None:
    run(pool, hostile.sleep, 0.2, 0.2)
    outcomes = pool.run(hostile.sleep, [(0.0,), (0.4,), (0.4,), (0.4,), (0.4,)], deadline=LONG, batch_deadline=0.7)
    assert outcomes[0].failure is None
    assert outcomes[-1].failure == "overdue"
    assert "batch" in outcomes[-1].reason
    assert run(pool, hostile.square, *range(9)) == [number**2 for number in range(9)]


@pytest.mark.parametrize(
    ("function", "argument", "part"),
    [
        (hostile.square, "a", "TypeError"),
        (hostile.leave, 3, "SystemExit"),
        (hostile.take_memory, 1 << 40, "MemoryError"),
    ],
)
def test_whatever_a_call_raises_is_told_and_the_worker_goes_on(
    pool: WorkerPool, function: Callable[..., Any], argument: Any, part: str
) -> None:
    (outcome,) = pool.run(function, [(argument,)], deadline=LONG)
    assert outcome.failure == "raised"
    assert outcome.reason.startswith(part)
    assert "Traceback" in outcome.traceback
    assert part in outcome.traceback


def test_a_result_that_cannot_be_sent_is_told(pool: WorkerPool) -> None:
    (outcome,) = pool.run(hostile.lambdas, [()], deadline=LONG)
    assert outcome.failure == "raised"
    assert run(pool, hostile.square, 5) == [25]


def test_memory_beyond_the_limit_is_not_taken() -> None:
    pool = WorkerPool(1, hostile.nothing, memory_limit=1 << 30)
    (outcome,) = pool.run(hostile.take_memory, [(2 << 30,)], deadline=LONG)
    assert outcome.reason.startswith("MemoryError")
    assert run(pool, hostile.take_memory, 1 << 20) == [1 << 20]


def test_a_start_up_that_raises_is_told_at_once() -> None:
    with pytest.raises(WorkerStartError, match="OSError: no licence") as caught:
        run(WorkerPool(2, hostile.refuse), hostile.square, 1)
    assert "in refuse" in caught.value.details


def test_workers_that_die_at_the_start_are_not_replaced_for_ever() -> None:
    with pytest.raises(WorkerStartError, match="in a row did not start, the last ended with exit code 7"):
        run(WorkerPool(1, hostile.vanish), hostile.square, 1)


def test_many_threads_share_a_pool(pool: WorkerPool) -> None:
    found: dict[int, list[Any]] = {}

    def work(base: int) -> None:
        found[base] = run(pool, hostile.square, *range(base, base + 10))

    threads = [threading.Thread(target=work, args=(base,)) for base in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {base: [number**2 for number in range(base, base + 10)] for base in range(8)}


def test_workers_outlive_the_thread_that_started_them(pool: WorkerPool) -> None:
    ids: set[int] = set()
    thread = threading.Thread(target=lambda: ids.update(run(pool, hostile.process_id, *range(20))))
    thread.start()
    thread.join()
    assert ids & set(run(pool, hostile.process_id, *range(20)))


def test_a_fork_has_workers_of_its_own(pool: WorkerPool) -> None:
    before = set(run(pool, hostile.process_id, *range(20)))
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            own = set(run(pool, hostile.process_id, *range(20)))
            os.write(writer, b"own" if own and not own & before else b"shared")
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 100) == b"own"
    os.waitpid(child, 0)
    os.close(reader)
    assert set(run(pool, hostile.process_id, *range(20))) & before


def test_no_files_or_processes_leak_however_often_workers_are_replaced() -> None:
    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(children())

    pool = WorkerPool(2, hostile.nothing)
    run(pool, hostile.square, 1)
    before = count()
    for _ in range(5):
        run(pool, hostile.kill_yourself, 3, 3, 1)
        run(pool, hostile.sleep, 10, deadline=0.05)
    assert count() == before
    del pool
    gc.collect()
    assert count()[1] == before[1] - 2


def test_an_interrupted_batch_leaves_nothing_behind(pool: WorkerPool) -> None:
    run(pool, hostile.sleep, 0.1, 0.1)
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        run(pool, hostile.sleep, 20.0, 20.0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert run(pool, hostile.square, 4) == [16]


SCRIPT = """
import sys, time
sys.path[:] = {path!r}
from tests.rewards import hostile
from stabledrl.rewards.worker_pool import WorkerPool
# No guard around what a script does: the workers must not run it again.
print("script", flush=True)
pool = WorkerPool(2, hostile.nothing)
pool.run(hostile.square, [(2,)] * 4, deadline=60)
{then}
"""


def script(then: str) -> subprocess.Popen[str]:
    code = SCRIPT.format(path=sys.path, then=then)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("then", ["", "sys.exit(0)", "pool.warm_up(); del pool"])
def test_a_script_ends_cleanly_and_silently(then: str) -> None:
    process = script(then)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (0, "script\n", "")


@pytest.mark.parametrize("busy", [False, True])
def test_workers_end_when_their_run_is_killed(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    then = "pool.run(hostile.sleep, [(1000.0,)] * 2, deadline=1.0)" if busy else "time.sleep(1000)"
    process = script(f"print('ready', flush=True); {then}")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["script\n", "ready\n"]
    time.sleep(0.2)
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.wait()
    # A busy one ends at its own alarm, a few seconds after the deadline.
    assert wait_for(lambda: not any(map(is_alive, workers)))
    process.communicate()


def test_signals_to_the_whole_run_do_not_end_workers(pool: WorkerPool) -> None:
    before = children()
    run(pool, hostile.sleep, 0.2, 0.2)
    for worker in children() - before:
        os.kill(worker, signal.SIGINT)
        os.kill(worker, signal.SIGTERM)
        assert os.getpgid(worker) != os.getpgid(0)
    ids = set(run(pool, hostile.process_id, *range(20)))
    assert ids <= children() - before


def test_pools_of_equal_settings_are_one() -> None:
    assert shared_pool(1, hostile.nothing) is shared_pool(1, hostile.nothing)
    assert shared_pool(1, hostile.nothing) is not shared_pool(2, hostile.nothing)
