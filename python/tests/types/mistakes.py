"""Uses of routines that a type checker refuses: the marked lines."""

from __future__ import annotations

import raddle

app = raddle.App("types")


@app.routine
async def add(a: int, b: int = 2) -> int:
    return a + b


@app.routine(queu="mail")  # wrong
async def misspelt() -> None: ...


async def use() -> None:
    await add.here("1", 2)  # wrong
    await add.here()  # wrong
    text: str = await add.here(1)  # wrong
    print(text)
