"""The messages of the host protocol, and their frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Union

import msgspec

PROTOCOL = 1
#: The longest body of a frame.
MAX_FRAME = 17 << 20


class Start(msgspec.Struct):
    """Run a routine or handler."""

    id: int
    routine: str
    handler: bool = False
    kwargs: dict[str, Any] = {}
    encoding: Union[str, None] = None
    tid: Union[str, None] = None
    attempt: int = 0
    fencing_token: int = 0
    worker: Union[str, None] = None
    timeout_ms: Union[int, None] = None
    traceparent: Union[str, None] = None
    tracestate: Union[str, None] = None
    context: dict[str, Any] = {}


class Cancel(msgspec.Struct):
    """End an attempt."""

    id: int
    reason: str = "stop"
    force: bool = False


class Stop(msgspec.Struct):
    """Finish what runs, and exit."""

    timeout_ms: int = 10_000


class Ping(msgspec.Struct):
    """Answer from the event loop."""

    n: int


class Credit(msgspec.Struct):
    """Room for more items of a stream."""

    id: int
    items: int


class ToHost(msgspec.Struct):
    """A message of the worker: one of these."""

    start: Union[Start, None] = None
    cancel: Union[Cancel, None] = None
    stop: Union[Stop, None] = None
    ping: Union[Ping, None] = None
    credit: Union[Credit, None] = None


_TO_HOST = msgspec.json.Decoder(ToHost)
_FROM_HOST = msgspec.json.Encoder()


def frame(head: bytes, payload: bytes | None = None) -> bytes:
    """A frame around a message and its payload."""
    if payload is None:
        return len(head).to_bytes(4, "little") + head
    length = len(head) + 1 + len(payload)
    return b"".join((length.to_bytes(4, "little"), head, b"\n", payload))


def message(kind: str, **fields: Any) -> bytes:
    """The frame of a message without payload."""
    return frame(_FROM_HOST.encode({kind: fields}))


def ack(run: int) -> bytes:
    """A run is about to begin."""
    return frame(b'{"ack":{"id":%d}}' % run)


def result(run: int, payload: bytes) -> bytes:
    """A run succeeded."""
    return frame(b'{"result":{"id":%d}}' % run, payload)


def item(run: int, payload: bytes) -> bytes:
    """One item of a stream."""
    return frame(b'{"item":{"id":%d}}' % run, payload)


class Decoder:
    """Takes bytes as they come, and gives the messages in them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[ToHost, bytes]]:
        """Adds bytes, and yields each whole message with its payload."""
        buffer = self._buffer
        buffer += data
        start, size = 0, len(buffer)
        while size - start >= 4:
            begin = start + 4
            end = begin + int.from_bytes(buffer[start:begin], "little")
            if end > size:
                break
            start = end
            split = buffer.find(b"\n", begin, end)
            if split < 0:
                yield _TO_HOST.decode(buffer[begin:end]), b""
            else:
                yield _TO_HOST.decode(buffer[begin:split]), bytes(buffer[split + 1 : end])
        del buffer[:start]
