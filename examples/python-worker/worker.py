"""A worker in Python: `python worker.py workers/`. What makes it one is in `raddle_worker.py`."""

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
    """A stream that never ends, and leaves a file behind when nobody wants it any more."""
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
    """Fails with a value, which is the error that the caller has declared."""
    if name != "it":
        raise Failed({"Missing": {"missing": name}}, f"{name} is missing")
    return 1


@routine("py.explode")
def explode(why):
    """Fails with no value that anybody has declared: to the caller, it has panicked."""
    raise ValueError(f"exploded for {why}")


@routine("py.sleep")
async def sleep(seconds):
    """Takes its time, and can be cancelled."""
    await asyncio.sleep(seconds)
    return seconds


@routine("py.block")
def block(seconds):
    """Takes its time in a thread, which nobody can end."""
    time.sleep(seconds)
    return seconds


@routine("py.echo")
async def echo(value):
    """What it was given: whatever JSON can say."""
    return value


@routine("py.infinity")
async def infinity():
    """What JSON cannot say."""
    return math.inf


@routine("py.tenant")
async def tenant():
    """What the caller has set for all that it calls."""
    return context("tenant")


if __name__ == "__main__":
    serve()
