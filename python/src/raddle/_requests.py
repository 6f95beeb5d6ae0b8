"""Requests to the broker, each for threads and for event loops."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from . import _companion
from ._context import current_or_none
from ._frames import Reply

R = TypeVar("R")
#: Makes a request for the broker with this number.
Make = Callable[[int], Any]
#: Makes the result of a reply.
Finish = Callable[[Any, "bytes | None"], R]

_queue_url: str | None = None
#: How many tasks are stored in one transaction, and how large they may be together.
_GROUP = 1000
_GROUP_BYTES = 8 * 1024 * 1024


def configure(*, queue_url: str | None = None) -> None:
    """Names the broker of this program. Without it, `QUEUE_URL` or the project directory does."""
    global _queue_url
    _queue_url = queue_url


def ask(make: Make, finish: Finish[R], verb: str, twin: str) -> R:
    """Sends a request from a thread, and waits for its result."""
    _companion.check_may_block(verb, twin)
    connection = _companion.connection()
    value, payload = connection.request(make(broker(connection)))
    return finish(value, payload)


async def aask(make: Make, finish: Finish[R]) -> R:
    """Sends a request from an event loop, and waits for its result."""
    connection = _companion.loop_connection()
    value, payload = await connection.request(make(await abroker(connection)))
    return finish(value, payload)


def broker(connection: _companion.ThreadConnection) -> int:
    """The number of the broker."""
    key = _broker_key()
    number = connection.companion.brokers.get(key)
    if number is None:
        number = connection.request(_open(key))[0]["broker"]
        connection.companion.brokers[key] = number
    return number


async def abroker(connection: _companion.LoopConnection) -> int:
    """The number of the broker."""
    key = _broker_key()
    number = connection.companion.brokers.get(key)
    if number is None:
        number = (await connection.request(_open(key)))[0]["broker"]
        connection.companion.brokers[key] = number
    return number


def _broker_key() -> tuple[str | None, str]:
    return (_queue_url or os.environ.get("QUEUE_URL") or None, os.getcwd())


def _open(key: tuple[str | None, str]) -> dict[str, Any]:
    return {"open": {"queue_url": key[0], "directory": key[1]}}


def submit_request(specs: Sequence[Any]) -> Make:
    """A request to store tasks, given as JSON."""
    parent = parent_task()
    return lambda broker: {"submit": {"broker": broker, "tasks": specs, "parent": parent}}


def groups(specs: Sequence[msgspec.Raw]) -> list[Sequence[msgspec.Raw]]:
    """Splits many tasks into transactions."""
    made: list[Sequence[msgspec.Raw]] = []
    group: list[msgspec.Raw] = []
    size = 0
    for spec in specs:
        length = len(bytes(spec))
        if group and (len(group) == _GROUP or size + length > _GROUP_BYTES):
            made.append(group)
            group, size = [], 0
        group.append(spec)
        size += length
    if group:
        made.append(group)
    return made


def parent_task() -> str | None:
    """The task that this code belongs to."""
    context = current_or_none()
    if context is not None:
        return context.tid or None
    return os.environ.get("RADDLE_TID") or None


def trace_fields() -> Mapping[str, Any]:
    """The trace that a task from here belongs to."""
    context = current_or_none()
    if context is not None and context.traceparent:
        return {"traceparent": context.traceparent}
    carrier = _current_span()
    if carrier:
        return carrier
    parent = os.environ.get("TRACEPARENT")
    return {"traceparent": parent} if parent else {}


def _current_span() -> dict[str, str]:
    """The span of OpenTelemetry, if the program uses it."""
    import sys

    propagate: Any = sys.modules.get("opentelemetry.propagate")
    carrier: dict[str, str] = {}
    if propagate is not None:
        propagate.inject(carrier)
    return {key: value for key, value in carrier.items() if key in ("traceparent", "tracestate")}


def no_result(_value: Any, _payload: bytes | None) -> None:
    """For requests without a result."""


def is_last(reply: Reply) -> bool:
    """Whether a reply ends a request with items."""
    return reply.item is msgspec.UNSET
