"""The calls of the benchmark with an actor of Ray. Prints calls per second as JSON."""

import asyncio
import json
import sys
import time

import ray


@ray.remote
class Adder:
    async def add(self, a, b):
        return a + b


def main(calls):
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    adder = Adder.remote()
    for _ in range(20):
        ray.get(adder.add.remote(1, 2))
    began = time.perf_counter()
    for _ in range(calls):
        assert ray.get(adder.add.remote(1, 2)) == 3
    figures = {"sequential": calls / (time.perf_counter() - began)}

    async def some():
        for _ in range(max(calls // 100, 1) * 2):
            await adder.add.remote(1, 2)

    async def many():
        await asyncio.gather(*(some() for _ in range(100)))

    began = time.perf_counter()
    asyncio.run(many())
    figures["concurrent"] = 100 * max(calls // 100, 1) * 2 / (time.perf_counter() - began)
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]))
