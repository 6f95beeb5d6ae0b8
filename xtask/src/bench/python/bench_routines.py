"""Routines of the benchmark."""

from collections.abc import AsyncIterator

import raddle

app = raddle.App("bench")


@app.routine
async def add(a: int, b: int) -> int:
    return a + b


@app.routine
async def count(to: int) -> AsyncIterator[int]:
    for number in range(to):
        yield number
