"""The calls of the benchmark with Wool. Prints calls and items per second as JSON."""

import asyncio
import json
import sys
import time

import wool


@wool.routine
async def add(a, b):
    return a + b


@wool.routine
async def count(to):
    for n in range(to):
        yield n


async def main(calls):
    figures = {}
    async with wool.WorkerPool(size=1):
        for _ in range(20):
            await add(1, 2)
        began = time.perf_counter()
        for _ in range(calls):
            assert await add(1, 2) == 3
        figures["sequential"] = calls / (time.perf_counter() - began)

        async def some():
            for _ in range(max(calls // 100, 1) * 2):
                await add(1, 2)

        began = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(100)))
        figures["concurrent"] = 100 * max(calls // 100, 1) * 2 / (time.perf_counter() - began)
        began = time.perf_counter()
        seen = 0
        async for _ in count(calls):
            seen += 1
        assert seen == calls
        figures["items"] = seen / (time.perf_counter() - began)
    print(json.dumps(figures))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
