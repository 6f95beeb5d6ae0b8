"""The companion: forks, threads, its end, and what it costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import is_alive, wait_until

import raddle

add = raddle.App("a").routine(name="add")(lambda a, b: a + b)

pytestmark = pytest.mark.usefixtures("project")


def test_a_forked_child_has_a_companion_of_its_own(companion_pid: Callable[[], int]) -> None:
    """As gunicorn does with `preload_app`: used before the fork, then in each child."""
    before = add.submit(1, 2)
    mine = companion_pid()
    children = []
    for _ in range(4):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for _ in range(3):
                    tid = add.submit(3, 4).tid
                os.write(writing, f"{tid} {companion_pid()}".encode())
                raddle.shutdown()
            finally:
                os._exit(0)
        os.close(writing)
        children.append((child, reading))
    companions = set()
    for child, reading in children:
        with os.fdopen(reading) as told:
            tid, pid = told.read().split()
        os.waitpid(child, 0)
        companions.add(int(pid))
        assert raddle.task(tid).status().state == "created"
    assert len(companions) == 4 and mine not in companions
    wait_until(lambda: not any(map(is_alive, companions)), "companions of the children are left")
    assert before.status().state == "created"
    assert companion_pid() == mine, "the parent's companion was not disturbed"


def test_threads_share_one_companion(companion_pid: Callable[[], int]) -> None:
    seen: list[tuple[str, int]] = []

    def work() -> None:
        for _ in range(20):
            seen.append((add.submit(1, 2).tid, companion_pid()))

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tid for tid, _ in seen}) == 100
    assert len({pid for _, pid in seen}) == 1


def test_a_killed_companion_fails_one_request_and_is_replaced(companion_pid: Callable[[], int]) -> None:
    task = add.submit(1, 2)
    first = companion_pid()
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            task.result()
        except raddle.Error as error:
            failed.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.2)
    os.kill(first, signal.SIGKILL)
    waiting.join()
    assert isinstance(failed[0], raddle.CompanionLost)
    assert task.status().state == "created", "the next request starts another companion"
    assert companion_pid() != first


@pytest.mark.parametrize("forks", [False, True])
def test_a_killed_program_leaves_no_companion(
    python: Callable[[str], subprocess.Popen[str]], forks: bool
) -> None:
    """Not even if a forked child, which has inherited the sockets, goes on."""
    code = "import os, time, raddle; raddle.submit_command(['true'])\n"
    code += "child = os.fork() if FORKS else 0\n".replace("FORKS", str(forks))
    code += "from raddle import _companion\n"
    code += "if not FORKS or child: print(child, _companion.companion().process_id, flush=True)\n".replace(
        "FORKS", str(forks)
    )
    code += "time.sleep(600)"
    program = python(code)
    assert program.stdout is not None
    child, companion = map(int, program.stdout.readline().split())
    assert is_alive(companion)
    program.kill()
    program.wait()
    program.stdout.close()
    wait_until(lambda: not is_alive(companion), "the companion is left")
    if forks:
        os.kill(child, signal.SIGKILL)


def test_a_companion_started_by_a_thread_outlives_that_thread(companion_pid: Callable[[], int]) -> None:
    starter = threading.Thread(target=lambda: add.submit(1, 2))
    starter.start()
    starter.join()
    first = companion_pid()
    add.submit(1, 2)
    assert companion_pid() == first


def test_several_programs_share_a_companion_by_path(
    project: Path, binary: str, monkeypatch: pytest.MonkeyPatch, python: Callable[[str], subprocess.Popen[str]]
) -> None:
    path = project / "companion.sock"
    served = subprocess.Popen([binary, "companion", "--listen", str(path)])
    try:
        wait_until(path.exists, "the companion does not listen")
        assert path.stat().st_mode & 0o777 == 0o600
        monkeypatch.setenv("RADDLE_COMPANION", f"unix:{path}")
        programs = [python("import raddle; print(raddle.submit_command(['true']).tid)") for _ in range(3)]
        tids = [program.communicate()[0].strip() for program in programs]
        assert len(set(tids)) == 3
        assert all(raddle.task(tid).status().state == "created" for tid in tids)
    finally:
        served.terminate()
        served.wait()
    assert not path.exists()
    raddle.shutdown()
    with pytest.raises(raddle.Error, match="raddle companion --listen"):
        add.submit(1, 2)


def test_a_companion_can_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    raddle.shutdown()
    monkeypatch.setenv("RADDLE_COMPANION", "off")
    with pytest.raises(raddle.Error, match="RADDLE_COMPANION=off"):
        add.submit(1, 2)


def test_an_interrupt_leaves_the_connection_usable() -> None:
    task = add.submit(1, 2)
    main = threading.get_ident()
    timer = threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        task.result()
    assert task.status().state == "created"


def test_import_is_quick_and_starts_nothing(python: Callable[[str], subprocess.Popen[str]]) -> None:
    code = "import asyncio, threading, sys, os; import raddle; print(threading.active_count(), 'pydantic' in sys.modules, len(os.listdir('/proc/self/task')))"
    assert python(code).communicate()[0].split() == ["1", "False", "1"]


def test_the_companion_is_small(companion_pid: Callable[[], int], binary: str) -> None:
    """Private memory: the pages of the program file are shared and can be dropped."""
    add.submit_many((1, 2) for _ in range(2000))
    status = Path(f"/proc/{companion_pid()}/status").read_text()
    anonymous = int(status.partition("RssAnon:")[2].split()[0])
    assert anonymous <= 12 * 1024, f"{anonymous} KiB"
