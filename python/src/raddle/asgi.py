"""A pool for the requests of an ASGI application: FastAPI, Starlette, and others.

`app.add_middleware(raddle.asgi.PoolMiddleware, pool=raddle.WorkerPool(size=4, app="shop.tasks:app"))`
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ._pool import _AMBIENT, WorkerPool

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class PoolMiddleware:
    """Opens a pool with the application, and makes it the pool of each request."""

    def __init__(self, app: Application, pool: WorkerPool) -> None:
        self._app = app
        self._pool = pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request, or the life of the application."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, self._opening(send))
            return
        token = _AMBIENT.set(self._pool)
        try:
            await self._app(scope, receive, send)
        finally:
            _AMBIENT.reset(token)

    def _opening(self, send: Send) -> Send:
        """Opens the pool before the application says that it is up, and closes it at the end."""

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                try:
                    await self._pool.astart()
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    raise
            elif message["type"].startswith("lifespan.shutdown."):
                await self._pool.astop()
            await send(message)

        return sending
