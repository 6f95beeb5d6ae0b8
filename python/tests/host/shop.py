"""The app of the tests."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import enum
import logging
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple, TypedDict

import pydantic

import raddle

app = raddle.App("shop")
log = logging.getLogger(__name__)
state: dict[str, object] = {}


class Colour(enum.Enum):
    RED = "red"


class Size(NamedTuple):
    width: int
    height: int


class Address(TypedDict):
    city: str


class Customer(pydantic.BaseModel):
    name: str


@dataclasses.dataclass
class Order:
    id: int
    at: datetime
    key: uuid.UUID
    price: Decimal
    colour: Colour
    size: Size
    data: bytes
    address: Address


class OutOfStock(Exception):
    def __init__(self, item: str) -> None:
        super().__init__(item)


@app.on_startup
async def open_state() -> None:
    state["started"] = os.getpid()


@app.on_startup
def open_more() -> None:
    state["more"] = state["started"]


@app.on_shutdown
def close_state() -> None:
    Path("shut-down").write_text(str(state["started"]))


@app.routine
async def add(a: int, b: int = 2) -> int:
    return a + b


@app.routine
def host_process() -> list[object]:
    return [os.getpid(), state["started"], state["more"]]


@app.routine
def tell(order: Order, *, loud: bool = False) -> dict[str, object]:
    price = str(order.price)
    return {"order": order, "type": type(order).__name__, "price": price, "loud": loud}


@app.routine
def greet(customer: Customer) -> Customer:
    assert isinstance(customer, Customer)
    return Customer(name=customer.name.upper())


@app.routine
def chatter() -> None:
    print("printed", end="")
    print(" in pieces")
    print("to stderr", file=sys.stderr)
    log.warning("logged %d", 7, extra={"order": 17})
    raddle.log("said", "debug", more=[1, 2])
    print("no newline", end="")


@app.routine
def halfway() -> None:
    raddle.progress(40, "halfway")
    raddle.progress(90, "nearly")
    time.sleep(600)


@app.routine
async def count(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


@app.routine
def count_plain(n: int) -> Iterator[int]:
    yield from range(n)


@app.routine
async def lack(item: str) -> None:
    try:
        {}["missing"]
    except KeyError as error:
        raise OutOfStock(item) from error


@app.routine
def permanent() -> None:
    raise raddle.Permanent("no such user")


@app.routine(retry=raddle.Retry(5, give_up_on=(ZeroDivisionError,)))
def divide(a: int, b: int) -> float:
    return a / b


@app.routine
def declared() -> None:
    raise raddle.Failed({"reason": "sold out"})


@app.routine
def leave() -> None:
    sys.exit(3)


@app.routine
async def leave_async() -> None:
    sys.exit(3)


@app.routine
def recurse(n: int = 0) -> int:
    return recurse.function(n + 1)


@app.routine
def opaque() -> object:
    return object()


@app.routine
def huge() -> bytes:
    return bytes(20 << 20)


@app.routine
def exit_at_once() -> None:
    os._exit(4)


@app.routine
def segfault() -> None:
    ctypes.string_at(0)


@app.routine
def doze(seconds: float) -> str:
    try:
        time.sleep(seconds)
    except raddle.Cancelled as error:
        Path("interrupted").write_text(error.reason)
        raise
    return "slept"


@app.routine
def spin(stubborn: bool = False) -> None:
    while True:
        try:
            while True:
                pass
        except raddle.Cancelled:
            if not stubborn:
                raise


@app.routine
async def doze_async(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@app.routine(threads=2)
def on_thread() -> list[object]:
    context = raddle.current()
    import threading

    return [threading.current_thread() is threading.main_thread(), context.tid, context.attempt]


@app.routine
async def whoami() -> list[object]:
    context = raddle.current()
    remaining = context.remaining
    return [context.tid, context.attempt, context.routine, remaining is not None and remaining > 0]


@app.routine
async def begin() -> None:
    raddle.chain({"target": {"routine": "shop:add"}, "args": [40, 2]})


@app.routine
def not_yet() -> int:
    if raddle.current().attempt < 3:
        raise raddle.Again("not yet", after=0.05)
    return raddle.current().attempt


@app.routine(run="fresh")
def alone() -> int:
    return os.getpid()


@app.handler
class Painter(raddle.Handler):
    name = "painter"
    provides = ("canvas",)

    def accepts(self, job: raddle.Job) -> bool:
        return bool(job.args)

    async def handle(self, job: raddle.Job) -> object:
        raddle.progress(50, "painting")
        return {"painted": job.args[0], "attempt": job.attempt, "requires": sorted(job.requires)}
