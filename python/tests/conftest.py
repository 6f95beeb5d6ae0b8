"""The program `raddle` and projects for tests. Each test ends with no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import raddle
from raddle import _companion

ROOT = Path(__file__).parents[2]
#: How long a test waits for what happens in a moment on an idle machine.
PATIENCE = 60.0


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits for a condition, and fails if it does not come true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def processes_in(directory: Path) -> list[int]:
    """The processes that work in a directory, other than this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if os.readlink(entry / "cwd").startswith(str(directory)) and is_alive(int(entry.name)):
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


@pytest.fixture(scope="session", autouse=True)
def binary() -> str:
    """The program `raddle`: of RADDLE_BINARY, or of the last build."""
    path = os.environ.get("RADDLE_BINARY") or str(ROOT / "target/debug/raddle")
    assert os.access(path, os.X_OK), f"{path} does not exist: run 'cargo build -p raddle-cli'"
    os.environ["RADDLE_BINARY"] = path
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty project as the current directory. No process may be left in it."""
    monkeypatch.chdir(tmp_path)
    for name in ("QUEUE_URL", "RADDLE_COMPANION", "RADDLE_TID", "TRACEPARENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'python/src'}")
    yield tmp_path
    raddle.shutdown()
    raddle.configure()
    try:
        wait_until(lambda: not processes_in(tmp_path), f"processes are left in {tmp_path}")
    except AssertionError:
        left = processes_in(tmp_path)
        shown = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"processes are left: {shown}") from None


@pytest.fixture
def python(project: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a Python program in the project."""

    def start(code: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


@pytest.fixture
def companion_pid() -> Callable[[], int]:
    """The process id of this program's companion."""

    def pid() -> int:
        found = _companion.companion().process_id
        assert found is not None
        return found

    return pid
