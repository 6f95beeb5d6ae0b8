"""Calls of routines on the warm workers of a pool."""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from . import _companion
from ._codec import decode, encode
from ._context import current_or_none
from ._errors import Arguments, CallError
from ._options import Span, span_seconds
from ._requests import is_last, trace_fields

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Self

    from ._pool import WorkerPool

    P = ParamSpec("P")
else:
    from typing import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")
#: Items that a worker may send ahead of the program.
_WINDOW = 512


class _AnyCalls:
    """Calls of one routine with the same options."""

    def __init__(self, routine: Any) -> None:
        self._routine = routine
        self._pool: WorkerPool | None = None
        self._timeout: float | None = None
        self._key: str | None = None

    def on(self, pool: WorkerPool) -> Self:
        """The same calls in this pool."""
        changed = copy.copy(self)
        changed._pool = pool
        return changed

    def timeout(self, timeout: Span) -> Self:
        """The same calls, each ended after this time."""
        if isinstance(timeout, str):
            raise TypeError("give the time in seconds or as a timedelta")
        changed = copy.copy(self)
        changed._timeout = span_seconds(timeout)
        return changed

    def key(self, key: object) -> Self:
        """The same calls: a sticky balancer sends those of one key to one worker."""
        changed = copy.copy(self)
        changed._key = str(key)
        return changed

    def _verb(self) -> dict[str, Any]:
        pool = self._pool
        if pool is None:
            from ._pool import current_pool

            pool = current_pool()
        call: dict[str, Any] = {"pool": pool.number, "routine": self._routine.name}
        context = current_or_none()
        left = None if context is None else context.remaining
        limits = [limit for limit in (self._timeout, left) if limit is not None]
        if limits:
            call["timeout_ms"] = max(1, round(min(limits) * 1000))
        if self._key is not None:
            call["key"] = self._key
        traceparent = trace_fields().get("traceparent")
        if traceparent:
            call["traceparent"] = traceparent
        return {"call": call}

    def _pack(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bytes:
        positional, named = self._routine.signature.bind(args, kwargs)
        if named:
            name = self._routine.name
            raise Arguments(f"{name}: '{min(named)}' is passed by name only, and calls pass positions")
        return encode(positional, "msgpack")

    def _unpack(self, payload: bytes | None, kind: Any) -> Any:
        try:
            return decode(payload or b"\xc0", kind, "msgpack")
        except (msgspec.ValidationError, TypeError) as error:
            wrong = CallError(f"the result of {self._routine.name} is not of the expected type: {error}")
            wrong.may_have_begun = True
            raise wrong from None

    def _refuse_to_block(self, verb: str, twin: str) -> None:
        name = self._routine.name
        _companion.check_may_block(f"{name}.{verb}", f"{name}{twin}")


class Calls(_AnyCalls, Generic[P, T]):
    """Calls of a routine that returns one value."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Makes a call. A caller that is cancelled cancels it."""
        connection = _companion.loop_connection()
        _, payload = await connection.request(self._verb(), self._pack(args, kwargs))
        return self._result(payload)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Makes a call, and waits."""
        self._refuse_to_block("call()", "()")
        _, payload = _companion.connection().request(self._verb(), self._pack(args, kwargs))
        return self._result(payload)

    async def map(
        self, arguments: Iterable[Sequence[Any]], *, window: int = 100, ordered: bool = True
    ) -> AsyncIterator[T]:
        """A call for each tuple of arguments, up to `window` at a time."""
        connection, verb = _companion.loop_connection(), self._verb()
        running: dict[asyncio.Future[Any], int] = {}
        ready: asyncio.Queue[asyncio.Future[Any]] = asyncio.Queue()
        ahead: deque[asyncio.Future[Any]] = deque()
        rest = iter(arguments)
        try:
            while True:
                while len(running) < window:
                    args = next(rest, None)
                    if args is None:
                        break
                    number, future = connection.post(verb, self._pack(args, {}))
                    running[future] = number
                    if ordered:
                        ahead.append(future)
                    else:
                        future.add_done_callback(ready.put_nowait)
                if not running:
                    return
                future = ahead.popleft() if ordered else await ready.get()
                _, payload = await future
                del running[future]
                yield self._result(payload)
        finally:
            for future, number in running.items():
                if future.done() and not future.cancelled():
                    future.exception()
                connection.abandon(number)

    def imap(self, arguments: Iterable[Sequence[Any]], *, window: int = 100) -> Iterator[T]:
        """A call for each tuple of arguments, up to `window` at a time, in order."""
        self._refuse_to_block("imap()", ".map()")
        connection, verb = _companion.connection(), self._verb()
        running: deque[int] = deque()
        rest = iter(arguments)
        try:
            while True:
                while len(running) < window:
                    args = next(rest, None)
                    if args is None:
                        break
                    running.append(connection.begin(verb, self._pack(args, {})))
                if not running:
                    return
                _, payload = connection.receive(running.popleft())
                yield self._result(payload)
        finally:
            for number in running:
                connection.cancel(number)

    def _result(self, payload: bytes | None) -> T:
        return cast(T, self._unpack(payload, self._routine.signature.returns))


class StreamCalls(_AnyCalls, Generic[P, T]):
    """Calls of a routine that yields items."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        """Makes a call. A loop that ends early cancels it."""
        connection, kind = _companion.loop_connection(), list[self._routine.signature.returns]  # type: ignore[name-defined]
        number, queue = connection.open_stream(self._verb(), self._pack(args, kwargs))
        connection.extend(number, _WINDOW)
        try:
            while True:
                got = await queue.get()
                if isinstance(got, BaseException):
                    raise got
                reply, payload = got
                if is_last(reply):
                    return
                items = self._unpack(payload, kind)
                for item in items:
                    yield item
                connection.extend(number, len(items))
        finally:
            connection.close_stream(number)

    def iter(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        """Makes a call. A loop that ends early cancels it."""
        self._refuse_to_block("iter()", "()")
        connection, kind = _companion.connection(), list[self._routine.signature.returns]  # type: ignore[name-defined]
        number = connection.begin(self._verb(), self._pack(args, kwargs))
        connection.extend(number, _WINDOW)
        try:
            while True:
                reply, payload = connection.receive(number)
                if is_last(reply):
                    return
                items = self._unpack(payload, kind)
                yield from items
                connection.extend(number, len(items))
        finally:
            connection.cancel(number)
