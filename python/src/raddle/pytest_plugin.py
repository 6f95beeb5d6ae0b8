"""Fixtures for tests of programs that use Raddle. pytest finds this plug-in by itself.

`@pytest.mark.raddle("inline")` (the default of the fixture `raddle_broker`) runs tasks when they
are submitted, `"manual"` when the test says so, and `"live"` in a worker of its own.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .testing import TestBroker

#: How long a worker of a test may take to start, and to end.
_PATIENCE = 60.0


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark."""
    config.addinivalue_line(
        "markers",
        "raddle(mode, app=None): run tasks 'inline', 'manual', or 'live' in a worker of app=MODULE:APP",
    )


@pytest.fixture
def raddle_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestBroker | None]:
    """The broker of the test, in the mode of its mark. A live test has none."""
    mark = request.node.get_closest_marker("raddle")
    mode: Any = mark.args[0] if mark is not None and mark.args else "inline"
    if mode in ("inline", "manual"):
        from .testing import TestBroker

        with TestBroker(mode).installed() as broker:
            yield broker
    elif mode == "live":
        app = None if mark is None else mark.kwargs.get("app")
        if app is None:
            pytest.fail("a live test names its app: @pytest.mark.raddle('live', app='shop.tasks:app')")
        yield from _live(app, tmp_path)
    else:
        pytest.fail(f"there is no mode '{mode}' of raddle: use 'inline', 'manual' or 'live'")


def _live(app: str, directory: Path) -> Iterator[Any]:
    """A worker of an app with a broker of its own. Both are gone after the test."""
    import raddle

    from ._binary import find_binary

    url = f"sqlite:{directory / 'raddle.db'}"
    log = (directory / "worker.log").open("w+")
    words = ["worker", "start", "--no-detach", "--hosts", "1", "--python", app]
    worker = subprocess.Popen(
        [find_binary(), "--queue-url", url, *words],
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_python_path())},
    )
    raddle.configure(queue_url=url)
    try:
        _wait_for_start(worker, log)
        yield None
    finally:
        raddle.shutdown()
        raddle.configure()
        worker.terminate()
        try:
            worker.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
            pytest.fail("the worker of the test did not end")
        log.close()


def _python_path() -> list[str]:
    """Where this program finds its modules: the app of a test may be beside the test."""
    import sys

    return [entry or os.getcwd() for entry in sys.path]


def _wait_for_start(worker: subprocess.Popen[bytes], log: Any) -> None:
    """Waits until the worker has printed its id."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        log.seek(0)
        text = log.read()
        if text.strip() and worker.poll() is None:
            return
        if worker.poll() is not None:
            pytest.fail(f"the worker of the test did not start: {text}")
        time.sleep(0.02)
    pytest.fail("the worker of the test did not start in time")
