"""Routines that the tests of pools call."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import raddle

app = raddle.App("pool-routines")


class Gone(Exception):
    pass


@dataclass
class Point:
    x: int
    at: datetime


@app.routine
async def add(a: int, b: int = 1) -> int:
    return a + b


@app.routine
async def move(point: Point, by: int) -> Point:
    return Point(point.x + by, point.at)


@app.routine
def where() -> int:
    return os.getpid()


@app.routine
async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number


@app.routine
def lines(text: str) -> Iterator[str]:
    yield from text.split("\n")


@app.routine
async def endless(marker: str) -> AsyncIterator[bytes]:
    try:
        while True:
            yield b"x" * 100
    finally:
        Path(marker).touch()


@app.routine
async def fail(what: str) -> None:
    raise Gone(what)


@app.routine
async def breaks(after: int) -> AsyncIterator[int]:
    for number in range(after):
        yield number
    raise Gone("it")


@app.routine
async def sleep(seconds: float, marker: str = "") -> float:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if marker:
            Path(marker).touch()
        raise
    return seconds


@app.routine
def spin(marker: str) -> None:
    """Never looks up."""
    Path(marker).touch()
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass


@app.routine
def end(how: str) -> None:
    if how == "exit":
        os._exit(3)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "recursion":
        end.function(how)
    if how == "system-exit":
        raise SystemExit(3)


@app.routine
def unsendable() -> object:
    return object()


@app.routine
async def nested(depth: int) -> str | None:
    return raddle.current().traceparent
