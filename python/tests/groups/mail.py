"""Groups of the tests, as a program of Everwork has them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import raddle
from raddle.groups import Fail


class Mail(raddle.AbstractWorker):
    settings = raddle.WorkerSettings(slug="mail", sources={"orders"}, execution_timeout=30)

    async def startup(self) -> None:
        self.sent = 0
        await asyncio.sleep(0)
        with Path("lifecycle").open("a") as file:
            print("startup", file=file)

    async def shutdown(self) -> None:
        with Path("lifecycle").open("a") as file:
            print(f"shutdown after {self.sent}", file=file)

    async def __call__(self, order_id: int, *, collector: raddle.Collector) -> int:
        self.sent += 1
        collector.add("shipped", {"order_id": order_id, "number": self.sent})
        if order_id < 0:
            raise Fail("no such order")
        return self.sent


class Stock(raddle.AbstractWorker):
    settings = raddle.WorkerSettings(slug="stock", sources={"shipped"})

    def __call__(self, order_id: int, number: int) -> str:
        with Path("stock").open("a") as file:
            print(order_id, number, file=file)
        return "booked"


manager = raddle.ProcessManager(
    [
        raddle.ProcessGroup(raddle.Process([Mail]), replicas=1),
        raddle.Process([Stock], name="warehouse"),
    ]
)

if __name__ == "__main__":
    manager.run()
