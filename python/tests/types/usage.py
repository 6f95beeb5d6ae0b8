"""Uses of routines that a type checker accepts, and their types."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from typing_extensions import assert_type

import raddle

app = raddle.App("types", queue="mail")


@app.routine
async def add(a: int, b: int = 2) -> int:
    return a + b


@app.routine
def shout(text: str) -> str:
    return text.upper()


@app.routine
async def words(text: str) -> AsyncIterator[str]:
    yield text


@app.routine(queue="gpu", timeout="5m", retry=raddle.Retry(5, on=(ConnectionError,)), requires={"cuda"})
def letters(text: str) -> Iterator[str]:
    yield from text


@app.every("10s")
@app.routine
async def tick() -> None: ...


@app.cron("0 7 * * *", tz="Europe/Berlin")
async def report(day: str = "today") -> None: ...


@raddle.routine
def alone() -> bytes:
    return b""




async def use() -> None:
    assert_type(await add.here(1), int)
    assert_type(await shout.here("a"), str)
    assert_type(await alone.here(), bytes)
    raddle.progress(40, "halfway")
    remaining = raddle.current().remaining
    assert_type(remaining, "float | None")


class Mail(raddle.AbstractWorker):
    settings = raddle.WorkerSettings(slug="mail", sources={"orders"}, execution_timeout=120)

    async def startup(self) -> None: ...

    async def __call__(self, order_id: int, *, collector: raddle.Collector) -> None:
        collector.add("shipped", {"id": order_id})


manager = raddle.ProcessManager([raddle.ProcessGroup(raddle.Process([Mail]), replicas=3)])
