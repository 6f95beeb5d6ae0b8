"""A worker in Python: `python worker.py workers/`. `raddle_worker.py` has the service."""

import asyncio
import math
import pathlib
import time

from raddle_worker import Failed, context, routine, serve


@routine("py.embed")
def embed(text):
    """A vector of length one: how often each letter occurs."""
    counts = [text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
    length = math.hypot(*counts) or 1.0
    return [count / length for count in counts]


@routine("py.words")
def words(text):
    """A stream."""
    yield from text.split()


@routine("py.ticks")
async def ticks(seconds, path):
    """An endless stream, which writes a file when it is cancelled."""
    try:
        number = 0
        while True:
            yield number
            number += 1
            await asyncio.sleep(seconds)
    finally:
        pathlib.Path(path).write_text("ended")


@routine("py.find")
async def find(name):
    """Fails with a value: the declared error of the caller."""
    if name != "it":
        raise Failed({"Missing": {"missing": name}}, f"{name} is missing")
    return 1


@routine("py.explode")
def explode(reason):
    """Fails with an undeclared error, which is a panic for the caller."""
    raise ValueError(f"exploded for {reason}")


@routine("py.sleep")
async def sleep(seconds):
    """Sleeps, and can be cancelled."""
    await asyncio.sleep(seconds)
    return seconds


@routine("py.block")
def block(seconds):
    """Blocks a thread, and cannot be cancelled."""
    time.sleep(seconds)
    return seconds


@routine("py.echo")
async def echo(value):
    """Returns its argument."""
    return value


@routine("py.infinity")
async def infinity():
    """Returns a value that is not JSON."""
    return math.inf


@routine("py.tenant")
async def tenant():
    """Returns a context value of the caller."""
    return context("tenant")


if __name__ == "__main__":
    serve()
