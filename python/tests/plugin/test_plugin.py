"""The pytest plug-in, in test suites of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from projects import PACKAGE, binary

pytest_plugins = ["pytester"]

APP = """
import asyncio
import dataclasses
import raddle

app = raddle.App("shop")


@dataclasses.dataclass
class Order:
    id: int


class Gone(Exception):
    pass


@app.routine
async def add(a: int, b: int) -> int:
    return a + b


@app.routine
def read(order: Order) -> Order:
    assert isinstance(order, Order)
    raddle.log("reading")
    raddle.progress(50, "halfway")
    return order


@app.routine(retry=raddle.Retry(3, base="10s"))
def flaky() -> int:
    if raddle.current().attempt < 3:
        raise Gone("away")
    return raddle.current().attempt


@app.routine
def opaque() -> object:
    return object()


@app.routine
async def begin() -> None:
    add.chain(1, 1)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test suite with the app, which finds the package and the plug-in."""
    pytester.makepyfile(shop=APP)
    pytester.makeini("[pytest]\npythonpath = .\n")
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    monkeypatch.setenv("RADDLE_BINARY", binary())
    return pytester


def passes(suite: pytest.Pytester, code: str, **outcomes: int) -> None:
    """Runs tests in another process."""
    suite.makepyfile(test_shop=code)
    done = suite.runpytest_subprocess("-p", "raddle.pytest_plugin", "-p", "no:asyncio")
    done.assert_outcomes(**(outcomes or {"passed": 1}))


def test_inline_tasks_run_through_the_codec(suite: pytest.Pytester) -> None:
    passes(
        suite,
        """
import asyncio, pytest, raddle
from shop import Gone, Order, add, begin, flaky, opaque, read

def test(raddle_broker):
    assert add.submit(1, 2).result() == 3
    assert read.submit(Order(7)).result() == Order(7)
    (task,) = raddle_broker.submitted(read)
    assert task.log == ["reading"] and task.progress == [(50.0, "halfway")]
    assert flaky.submit().result() == 3
    with pytest.raises(raddle.CannotEncode):
        opaque.submit().result()
    begin.submit()
    assert raddle_broker.submitted(add, args=(1, 1))[0].value == 2
    with pytest.raises(raddle.Arguments):
        add.submit("x", 1).result()
    assert asyncio.run(submit()) == 5

async def submit():
    task = await add.asubmit(2, 3)
    return await task.aresult()
""",
    )


def test_manual_tasks_wait_for_the_clock_of_the_test(suite: pytest.Pytester) -> None:
    passes(
        suite,
        """
import pytest, raddle
from shop import add, flaky

@pytest.mark.raddle("manual")
def test(raddle_broker):
    now, later = add.submit(1, 2), add.with_(delay="1h").submit(3, 4)
    same = [add.with_(unique_key="k").submit(5, 6) for _ in range(2)]
    assert same[0] == same[1] and same[1].existing
    assert now.status().state == "created"
    assert raddle_broker.drain() == 2
    assert now.result() == 3
    assert later.status().state == "created"
    assert raddle_broker.advance("59m") == 0
    assert raddle_broker.advance("1m") == 1
    assert later.result() == 7
    task = flaky.submit()
    assert raddle_broker.drain() == 1
    assert raddle_broker.advance("10s") == 1
    assert raddle_broker.advance("20s") == 1
    assert task.result() == 3
    add.schedule("nightly", cron="0 0 * * *", args=(1, 2))
    assert raddle_broker.schedules["nightly"]["cron"] == "0 0 * * *"
""",
    )


def test_live_tasks_run_in_a_worker(suite: pytest.Pytester) -> None:
    passes(
        suite,
        """
import pytest
from shop import Gone, add, flaky

@pytest.mark.raddle("live", app="shop:app")
def test(raddle_broker):
    assert add.submit(1, 2).result(timeout=60) == 3
""",
    )
    left = [path for path in Path("/proc").iterdir() if works_in(path, suite.path)]
    assert not left, "no process is left"


def works_in(process: Path, directory: Path) -> bool:
    """Whether a process works in a directory."""
    try:
        found = process.name.isdigit() and int(process.name) != os.getpid()
        return found and Path(os.readlink(process / "cwd")).is_relative_to(directory)
    except OSError:
        return False


def test_one_attempt_is_run_by_hand(suite: pytest.Pytester) -> None:
    passes(
        suite,
        """
from raddle.testing import run_job
from shop import flaky

def test():
    assert run_job(flaky, attempt=1).state == "failed"
    assert run_job(flaky, attempt=3).value == 3
""",
    )


def test_a_wrong_mode_is_named(suite: pytest.Pytester) -> None:
    passes(
        suite,
        """
import pytest

@pytest.mark.raddle("sideways")
def test(raddle_broker): ...
""",
        errors=1,
    )
