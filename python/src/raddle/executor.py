"""A pool as a `concurrent.futures.Executor`, for `loop.run_in_executor` and libraries that take one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ._pool import WorkerPool
from ._routine import Routine

T = TypeVar("T")


class Executor(ThreadPoolExecutor):
    """Runs routines on the workers of a pool. A thread waits for each call."""

    def __init__(self, pool: WorkerPool, max_workers: int = 32) -> None:
        super().__init__(max_workers, thread_name_prefix="raddle-call")
        self._pool = pool

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Calls a routine. Anything else is refused: other processes could not find it."""
        if not isinstance(fn, Routine):
            raise TypeError(f"{fn!r} is no routine: decorate it with @app.routine")
        return super().submit(fn.on(self._pool).call, *args, **kwargs)
