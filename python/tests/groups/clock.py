"""An app with routines by the clock."""

from __future__ import annotations

from pathlib import Path

import raddle

app = raddle.App("clock", queue="sums")


@app.every("1s")
@app.routine
async def tick() -> None:
    with Path("ticks").open("a") as file:
        print("tick", file=file)


@app.cron("0 7 * * 1-5", tz="Europe/Berlin", missed="one")
def report() -> None: ...


@app.routine
def double(number: int) -> int:
    return 2 * number
