"""Projects of tests: a directory with an app, and the command line in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[1] / "src"
#: Ends a test that waits for something that does not come.
DEADLINE = 120.0


def binary() -> str:
    """The binary of this build."""
    found = os.environ.get("RADDLE_BINARY") or shutil.which("raddle")
    if found is None:
        pytest.fail("the tests need the binary: set RADDLE_BINARY, as 'cargo xtask test' does")
    return str(Path(found).resolve())


class Project:
    """A directory with an app, and the command line in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = binary()
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RADDLE_")},
            "PYTHONPATH": f"{PACKAGE}{os.pathsep}{Path(__file__).parent / 'host'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "RADDLE_PYTHON": sys.executable,
        }
        self.processes: list[subprocess.Popen[str]] = []

    def raddle(self, *args: str, code: int | None = 0) -> str:
        """Runs a command, checks its exit code, and returns what it printed."""
        done = subprocess.run(
            [self.program, *args],
            cwd=self.directory,
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=DEADLINE,
        )
        if code is not None and done.returncode != code:
            raise AssertionError(f"raddle {' '.join(args)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + (done.stderr if code != 0 else "")

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Starts a command in the foreground. It is ended with the test."""
        with open(self.directory / f"process-{len(self.processes)}.log", "w") as log:
            process = subprocess.Popen(
                [self.program, *args], cwd=self.directory, env=self.env, text=True, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def start_worker(self, app: str = "shop:app", *args: str) -> None:
        """Starts a worker in the background."""
        self.raddle("worker", "start", "--python", app, *args)

    def submit(self, routine: str, *values: Any, options: tuple[str, ...] = ()) -> str:
        """Submits a task, and returns its id."""
        words = [json.dumps(value) for value in values]
        return self.raddle("submit", "--routine", routine, *options, "--", *words).strip()

    def submit_spec(self, **spec: Any) -> str:
        """Submits a task by its spec, and returns its id."""
        path = self.directory / "spec.json"
        path.write_text(json.dumps(spec))
        return self.raddle("submit", "--file", str(path)).strip()

    def finish(self, tid: str) -> dict[str, Any]:
        """Waits for the end of a task, and returns its record."""
        self.raddle("wait", tid, "--timeout", str(DEADLINE), code=None)
        return self.status(tid)

    def run(self, routine: str, *values: Any, options: tuple[str, ...] = ()) -> dict[str, Any]:
        """Runs a task to its end, and returns its record."""
        return self.finish(self.submit(routine, *values, options=options))

    def value(self, routine: str, *values: Any) -> Any:
        """The value of a task that succeeds."""
        record = self.run(routine, *values)
        assert record["state"] == "completed", record
        return record["report"]["value"]

    def failure(self, routine: str, *values: Any, options: tuple[str, ...] = ()) -> str:
        """The error of a task that fails."""
        record = self.run(routine, *values, options=options)
        assert record["state"] == "failed", record
        message: str = record["report"]["exit"]["message"]
        return message

    def status(self, tid: str) -> dict[str, Any]:
        """The record of a task."""
        record: dict[str, Any] = json.loads(self.raddle("task", "status", tid, "--json"))
        return record

    def logs(self, tid: str) -> str:
        """The log of a task: what it wrote to standard output and error."""
        return self.raddle("logs", tid, code=None)

    def worker_logs(self) -> str:
        """The logs of all workers."""
        return "".join(path.read_text() for path in self.directory.glob(".raddle/worker-*.log"))

    def close(self) -> None:
        """Stops everything, and checks that no process is left."""
        self.raddle("worker", "stop", "--all", "--timeout", "30", code=None)
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        wait_until(lambda: not self.processes_left(), "all processes end")

    def processes_left(self) -> list[str]:
        """Command lines of processes that work in the directory."""
        left = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and int(process.name) != os.getpid():
                try:
                    if Path(os.readlink(process / "cwd")).is_relative_to(self.directory):
                        left.append((process / "cmdline").read_text().replace("\0", " "))
                except OSError:
                    continue
        return left


def wait_until(is_true: Callable[[], Any], what: str) -> None:
    """Waits for a condition."""
    end = time.monotonic() + DEADLINE
    while not is_true():
        if time.monotonic() > end:
            raise AssertionError(f"it did not happen that {what}")
        time.sleep(0.05)


def interpreter(version: str) -> str | None:
    """An interpreter of a version: on the path, or of pyenv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    roots = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(roots.glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


def new_environment(python: str, directory: Path, *packages: str) -> None:
    """A virtual environment with packages. The tool needs no package of Debian."""
    create = [sys.executable, "-m", "virtualenv", "--quiet", "--no-download", "--python", python]
    subprocess.run([*create, directory], check=True)
    pip = [directory / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*pip, *packages], check=True)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An empty project."""
    made = Project(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with a worker of the app in `shop.py`, for all tests of a module."""
    made = Project(tmp_path_factory.mktemp("shop"))
    made.start_worker("shop:app", "--hosts", "1")
    yield made
    made.close()
