"""Frames between this program and its companion: a length, JSON, and for some a payload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Union

import msgspec

from . import _errors as errors
from . import _remote

PROTOCOL = 1
_PREFIX = 4
_HEAD = msgspec.json.Encoder()


class Problem(msgspec.Struct):
    """The error of a request."""

    kind: str
    message: str
    hint: Union[str, None] = None
    may_have_begun: bool = False


class Reply(msgspec.Struct):
    """A message of the companion."""

    id: int = 0
    ok: Any = msgspec.UNSET
    error: Union[Problem, None] = None
    item: Any = msgspec.UNSET
    note: Union[str, None] = None
    hello: Any = None


_REPLY = msgspec.json.Decoder(Reply)

_KINDS: dict[str, type[errors.Error]] = {
    "invalid": errors.Invalid,
    "not_found": errors.NotFound,
    "unavailable": errors.Unavailable,
    "unconfirmed": errors.Unconfirmed,
    "timed_out": errors.TimedOut,
    "finished": errors.Invalid,
    "unfinished": errors.Invalid,
    "key_taken": errors.Invalid,
    "lost": errors.Lost,
    "no_workers": errors.NoWorkers,
    "unknown_routine": errors.UnknownRoutine,
    "denied": errors.Denied,
    "call": errors.CallError,
    "arguments": errors.Arguments,
}


def frame(number: int, verb: Any, payload: bytes | None = None) -> bytes:
    """The frame of a request."""
    head = _HEAD.encode({"id": number, "do": verb})
    if payload is None:
        return len(head).to_bytes(_PREFIX, "little") + head
    length = len(head) + 1 + len(payload)
    return b"".join((length.to_bytes(_PREFIX, "little"), head, b"\n", payload))


class Decoder:
    """Takes bytes as they come, and gives the messages in them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Reply, bytes | None]]:
        """Adds bytes, and yields each whole message with its payload."""
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        while size - start >= _PREFIX:
            begin = start + _PREFIX
            end = begin + int.from_bytes(buffer[start:begin], "little")
            if end > size:
                break
            start = end
            split = buffer.find(b"\n", begin, end)
            if split < 0:
                yield _REPLY.decode(buffer[begin:end]), None
            else:
                yield _REPLY.decode(buffer[begin:split]), bytes(buffer[split + 1 : end])
        del buffer[:start]


def exception_of(problem: Problem, payload: bytes | None = None) -> Exception:
    """The exception for the error of a request. The payload is the error of a routine."""
    if problem.kind == "failed" and payload:
        value = msgspec.msgpack.decode(payload)
        description = _remote.find_description(value)
        return errors.Failed(value) if description is None else _remote.rebuild(description)
    if problem.kind in ("failed", "panicked"):
        return errors.RemoteError(problem.message)
    text = problem.message if problem.hint is None else f"{problem.message}: {problem.hint}"
    error = _KINDS.get(problem.kind, errors.BrokerError)(text)
    error.hint = problem.hint
    if isinstance(error, errors.CallError):
        error.may_have_begun = problem.may_have_begun
    return error
