"""The calls and tasks of a Python program. Prints rates per second, and sizes, as JSON."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import raddle
from bench_routines import add, app, count
from raddle import _companion


def rate(amount, began):
    return amount / (time.perf_counter() - began)


async def calls(amount):
    figures = {}
    began = time.perf_counter()
    async with raddle.WorkerPool(size=1, app=app):
        figures["start_ms"] = (time.perf_counter() - began) * 1000
        for _ in range(50):
            await add(1, 2)
        began = time.perf_counter()
        for _ in range(amount):
            assert await add(1, 2) == 3
        figures["sequential"] = rate(amount, began)
        began, seen = time.perf_counter(), 0
        async for value in add.map(((1, 2) for _ in range(amount * 10)), window=100, ordered=False):
            seen += value
        assert seen == 30 * amount
        figures["concurrent"] = rate(amount * 10, began)
        began, seen = time.perf_counter(), 0
        async for _ in count(amount * 50):
            seen += 1
        assert seen == amount * 50
        figures["items"] = rate(seen, began)
    return figures


def threads(amount):
    with raddle.WorkerPool(size=1, app=app):
        for _ in range(50):
            add.call(1, 2)
        began = time.perf_counter()
        for _ in range(amount):
            assert add.call(1, 2) == 3
        return rate(amount, began)


def tasks(amount):
    add.submit(1, 2)
    began = time.perf_counter()
    for _ in range(amount):
        add.submit(1, 2)
    one = (time.perf_counter() - began) / amount * 1000
    began = time.perf_counter()
    add.submit_many((1, 2) for _ in range(amount * 20))
    return one, rate(amount * 20, began)


def program_ms(code):
    times = []
    for _ in range(7):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append((time.perf_counter() - began) * 1000)
    return sorted(times)[3]


def main(amount):
    figures = asyncio.run(calls(amount))
    figures["sync"] = threads(amount)
    figures["submit_ms"], figures["submit_many"] = tasks(max(amount // 10, 20))
    status = Path(f"/proc/{_companion.companion().process_id}/status").read_text()
    figures["companion_mib"] = int(status.partition("RssAnon:")[2].split()[0]) / 1024
    figures["companion_rss_mib"] = int(status.partition("VmRSS:")[2].split()[0]) / 1024
    figures["import_ms"] = program_ms("import asyncio, raddle") - program_ms("import asyncio")
    figures["python_ms"] = program_ms("pass")
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]))
