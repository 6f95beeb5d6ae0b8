"""Pools of warm workers: calls, streams, errors, stops. Everything runs for real."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from conftest import ROOT, is_alive, processes_in, wait_until
from pool_routines import (
    Gone,
    Point,
    add,
    app,
    breaks,
    end,
    endless,
    fail,
    lines,
    move,
    nested,
    numbers,
    sleep,
    spin,
    unsendable,
    where,
)

import raddle
from raddle import _companion


@pytest.fixture
def pool(project: Path) -> Iterator[raddle.WorkerPool]:
    with raddle.WorkerPool(size=1, app=app) as opened:
        yield opened


def test_calls_in_an_event_loop(project: Path) -> None:
    async def main() -> None:
        async with raddle.WorkerPool(size=2, app=app) as pool:
            assert await add(1, 2) == 3
            assert await add(b=5, a=1) == 6
            at = datetime(2026, 1, 2, tzinfo=timezone.utc)
            assert await move(Point(1, at), 2) == Point(3, at)
            assert await asyncio.gather(*(add(number) for number in range(300))) == list(range(1, 301))
            assert len(await pool.aworkers()) == 2
            assert [item async for item in numbers(2000)] == list(range(2000))
            pairs = [(number, number) for number in range(500)]
            assert [value async for value in add.map(pairs)] == [2 * number for number, _ in pairs]
            unordered = {value async for value in add.map(pairs, window=20, ordered=False)}
            assert unordered == {2 * number for number, _ in pairs}
        with pytest.raises(raddle.Error, match="no pool to call in"):
            await add(1, 2)
        with pytest.raises(raddle.Error, match="not open"):
            await add.on(pool)(1, 2)

    asyncio.run(main())


def test_calls_from_a_thread(pool: raddle.WorkerPool) -> None:
    assert add.call(1, 2) == 3
    assert list(lines.iter("a\nb")) == ["a", "b"]
    assert list(add.imap((number, 1) for number in range(300))) == list(range(1, 301))
    assert where.on(pool).timeout(30).key("u1").call() == where.call()
    seen = []
    for number in numbers.iter(700):
        if number % 100 == 0:
            seen.append(add.call(number, 1))
    assert seen == [number + 1 for number in range(0, 700, 100)], "a loop body may call"


def test_a_blocking_call_in_an_event_loop_names_its_twin(pool: raddle.WorkerPool) -> None:
    async def block() -> None:
        add.call(1, 2)

    with pytest.raises(raddle.Error, match=r"use 'await pool_routines:add\(\)'"):
        asyncio.run(block())


def test_exceptions_are_of_their_class_with_the_remote_traceback(pool: raddle.WorkerPool) -> None:
    with pytest.raises(Gone) as gone:
        fail.call("it")
    assert gone.value.args == ("it",)
    assert "raise Gone(what)" in str(gone.value.__cause__)
    with pytest.raises(raddle.Arguments, match="argument 'a' of pool_routines:add: Expected `int`, got `str`"):
        add.call("x", 1)  # type: ignore[arg-type]
    with pytest.raises(raddle.Arguments, match="unexpected keyword argument 'c'"):
        add.call(1, c=2)  # type: ignore[call-arg]


def test_a_stream_that_fails_gives_its_items_first(pool: raddle.WorkerPool) -> None:
    got = []
    with pytest.raises(Gone):
        for item in breaks.iter(700):
            got.append(item)
    assert got == list(range(700))


def test_leaving_a_stream_cancels_it(pool: raddle.WorkerPool, project: Path) -> None:
    marker = project / "ended"
    for count, item in enumerate(endless.iter(str(marker))):
        assert item == b"x" * 100
        if count == 3000:
            break
    wait_until(marker.exists, "the stream goes on")
    assert add.call(1, 2) == 3


def test_a_caller_that_is_cancelled_cancels_the_call(project: Path) -> None:
    marker = project / "cancelled"

    async def main() -> None:
        async with raddle.WorkerPool(size=1, app=app):
            call = asyncio.create_task(sleep(60, str(marker)))
            await add(1, 2)
            await asyncio.sleep(0.2)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            while not marker.exists():
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_timeout_ends_the_call_on_both_sides(pool: raddle.WorkerPool, project: Path) -> None:
    marker = project / "cancelled"
    with pytest.raises(raddle.TimedOut):
        sleep.timeout(0.5).call(60, str(marker))
    wait_until(marker.exists, "the routine goes on")


def test_a_routine_that_cannot_be_cancelled_costs_its_host(pool: raddle.WorkerPool, project: Path) -> None:
    before = where.call()
    with pytest.raises(raddle.TimedOut):
        spin.timeout(1).call(str(project / "spinning"))
    wait_until(lambda: not is_alive(before), "the host spins on")
    wait_until(lambda: _calls_again(), "no worker follows")


@pytest.mark.parametrize("how", ["exit", "segfault"])
def test_the_death_of_a_host_loses_its_calls_and_nothing_else(pool: raddle.WorkerPool, how: str) -> None:
    before = where.call()
    with pytest.raises(raddle.Lost) as lost:
        end.call(how)
    assert lost.value.may_have_begun
    wait_until(lambda: _calls_again(), "no worker follows")
    assert where.call() != before


def _calls_again() -> bool:
    try:
        return add.call(1, 2) == 3
    except raddle.CallError:
        return False


@pytest.mark.parametrize("how", ["recursion", "system-exit"])
def test_an_error_of_a_routine_ends_that_call_only(pool: raddle.WorkerPool, how: str) -> None:
    before = where.call()
    with pytest.raises((RecursionError, raddle.RemoteError)):
        end.call(how)
    with pytest.raises((raddle.Error, TypeError), match="object"):
        unsendable.call()
    assert where.call() == before


def test_the_trace_of_the_program_reaches_the_routine(
    pool: raddle.WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    monkeypatch.setenv("TRACEPARENT", f"00-{trace}-b7ad6b7169203331-01")
    assert trace in (nested.call(1) or "")


def test_durable_and_hybrid_pools_find_the_workers_of_others(project: Path) -> None:
    name = f"found-{os.getpid()}"
    with raddle.WorkerPool(size=1, app=app, name=name):
        mine = where.call()
        with raddle.WorkerPool(discovery=raddle.LocalDiscovery(name)) as durable:
            assert where.call() == mine
            assert len(durable.workers()) == 1
        with raddle.WorkerPool(size=1, app=app, discovery=raddle.LocalDiscovery(name), balancer="round-robin") as hybrid:
            wait_until(lambda: len(hybrid.workers()) == 2, "the other worker was not found")
            assert len({where.call() for _ in range(20)}) == 2


def test_pool_serve_runs_a_host(project: Path, binary: str) -> None:
    name = f"served-{os.getpid()}"
    command = [binary, "pool", "serve", "--name", name, "--workers", "1", "--host"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'python/src'}:{Path(__file__).parent}"}
    served = subprocess.Popen(
        [*command, sys.executable, "-m", "raddle.host", "pool_routines:app"], env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert served.stdout is not None
        assert "1 worker serves" in served.stdout.readline()
        with raddle.WorkerPool(discovery=raddle.LocalDiscovery(name)):
            wait_until(_calls_again, "the worker was not found")
    finally:
        served.terminate()
        served.communicate()


def test_a_pool_that_cannot_start_says_why(project: Path) -> None:
    with pytest.raises(raddle.NoWorkers, match="no module 'nothing_here'|the host ended before it was ready"):
        raddle.WorkerPool(size=1, app="nothing_here:app").start()
    with pytest.raises(raddle.Invalid, match="there is no balancer 'best'"):
        raddle.WorkerPool(size=1, app=app, balancer="best").start()  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the same"):
        raddle.WorkerPool(size=1, spawn=1, app=app)


def test_a_pool_does_not_cross_a_fork(pool: raddle.WorkerPool) -> None:
    child = os.fork()
    if child == 0:
        try:
            add.call(1, 2)
        except raddle.Error as error:
            os._exit(0 if "before a fork" in str(error) else 2)
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert add.call(1, 2) == 3


@pytest.mark.parametrize("victim", ["program", "companion"])
def test_a_kill_leaves_no_process(
    project: Path, python: Callable[[str], subprocess.Popen[str]], victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not the host that is busy in a routine, and so does not see that its socket is closed."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'python/src'}:{Path(__file__).parent}")
    marker = project / "spinning"
    code = "import threading, time, raddle\nfrom raddle import _companion\nfrom pool_routines import app, spin\n"
    code += f"def call():\n    with raddle.WorkerPool(size=2, app=app): spin.call({str(marker)!r})\n"
    code += "threading.Thread(target=call, daemon=True).start()\n"
    code += "time.sleep(1)\nprint(_companion.companion().process_id, flush=True)\ntime.sleep(600)\n"
    program = python(code)
    assert program.stdout is not None
    companion = int(program.stdout.readline())
    wait_until(marker.exists, "the routine was not called")
    os.kill(program.pid if victim == "program" else companion, signal.SIGKILL)
    wait_until(lambda: not [pid for pid in processes_in(project) if pid != program.pid], "a process is left")
    program.kill()
    program.communicate()


def test_a_closed_pool_has_no_processes(project: Path) -> None:
    with raddle.WorkerPool(size=2, app=app):
        hosts = {where.call() for _ in range(10)}
        companion = _companion.companion().process_id
    wait_until(lambda: not any(map(is_alive, hosts)), "hosts are left")
    assert processes_in(project) == [companion]
