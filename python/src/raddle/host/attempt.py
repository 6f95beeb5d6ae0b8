"""One attempt in this host: the context of a routine, and its one answer."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .._codec import CannotEncode, Encoding, encode, to_plain, type_name
from .._context import Context
from .._errors import Again, Arguments, Cancelled, Failed, Permanent
from .._options import Retry
from .._remote import KEY, describe_exception
from . import messages
from .connection import is_too_long

if TYPE_CHECKING:
    from .service import Host

#: The shortest time between two progress reports of one attempt.
_PROGRESS_EVERY = 0.05
_MAX_CAUSES = 16
_OWN_FILES = str(Path(__file__).parent)


class Attempt(Context):
    """An attempt that a worker has started here."""

    def __init__(self, host: Host, start: messages.Start, retry: Retry | None) -> None:
        self.id = start.id
        self.tid = start.tid or ""
        self.attempt = start.attempt
        self.routine = start.routine
        self.traceparent = start.traceparent
        self.fencing_token = start.fencing_token
        self.is_call = start.tid is None
        self.encoding: Encoding = "msgpack" if start.encoding == "messagepack" else "json"
        self.deadline = None
        if start.timeout_ms is not None:
            self.deadline = time.monotonic() + start.timeout_ms / 1000
        self.start = start
        #: The task on the event loop, if it runs there.
        self.task: asyncio.Task[None] | None = None
        #: Why it has to end.
        self.cancel_reason: str | None = None
        self.credit = threading.Semaphore(0)
        self.async_credit = asyncio.Semaphore(0)
        self._host = host
        self._retry = retry
        self._reported_at = 0.0
        self._unreported: bytes | None = None
        #: Whether its answer is made.
        self.is_over = False
        self._lines: dict[str, str] = {}

    @property
    def is_cancelled(self) -> bool:
        return self.cancel_reason is not None

    def progress(self, percent: float | None, message: str) -> None:
        fields: dict[str, Any] = {"id": self.id, "message": message}
        if percent is not None:
            fields["percent"] = float(percent)
        data = messages.message("progress", **fields)
        now = time.monotonic()
        if now - self._reported_at >= _PROGRESS_EVERY:
            self._reported_at, self._unreported = now, None
            self._host.post(data)
            return
        is_first = self._unreported is None
        self._unreported = data
        if is_first:
            self._host.call_later(_PROGRESS_EVERY, self._report)

    def _report(self) -> None:
        """Sends the last progress that came too soon after another, unless the attempt is over."""
        data, self._unreported = self._unreported, None
        if data is not None and not self.is_over:
            self._reported_at = time.monotonic()
            self._host.post(data)

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        more = {"fields": plain_fields(fields)} if fields else {}
        self._host.post(messages.message("log", id=self.id, level=level, message=message, **more))

    def chain(self, spec: Mapping[str, Any]) -> None:
        self._host.post(messages.message("chain", id=self.id, spec=dict(spec)))

    def print_text(self, level: str, text: str) -> None:
        """Takes in printed text. Whole lines go to the log."""
        *lines, rest = (self._lines.get(level, "") + text).split("\n")
        self._lines[level] = rest
        for line in lines:
            self.log(level, line, {})

    def succeed(self, value: Any) -> bytes:
        """The answer with a value."""
        try:
            payload = encode(value, self.encoding)
        except CannotEncode as error:
            return self.fail(CannotEncode(f"the result of {self.routine} cannot be sent: {error}"))
        if is_too_long(payload):
            size = f"{len(payload) >> 20} MiB"
            return self.fail(
                CannotEncode(f"the result of {self.routine} has {size}: return a path to it instead")
            )
        return self._said() + messages.result(self.id, payload)

    def item(self, value: Any) -> bytes:
        """One item of a stream."""
        return messages.item(self.id, encode(value, self.encoding))

    def fail(self, error: BaseException) -> bytes:
        """The answer with an error."""
        fields: dict[str, Any] = {"id": self.id}
        if isinstance(error, (Cancelled, asyncio.CancelledError)) and self.is_cancelled:
            fields.update(message="it was cancelled", cancelled=True)
            return self._said() + messages.message("error", **fields)
        text = _text(error)
        if isinstance(error, (Failed, Again, Permanent)):
            fields["message"] = text
        else:
            fields.update(type=type_name(type(error)), message=text, causes=_causes(error))
        if isinstance(error, Failed):
            fields["value"] = plain_fields({"value": error.value})["value"]
            fields["permanent"] = error.permanent
        elif isinstance(error, Again):
            if error.after is not None:
                fields["retry_after_ms"] = int(error.after * 1000)
        else:
            error.__traceback__ = _users_part(error)
            fields["value"] = {KEY: describe_exception(error)}
            fields["permanent"] = isinstance(error, (Permanent, Arguments, CannotEncode)) or (
                self._retry is not None and self._retry.is_permanent(error)
            )
            is_ours = isinstance(error, (Arguments, CannotEncode))
            if not self.is_call and not is_ours and error.__traceback__ is not None:
                lines = traceback.format_exception(type(error), error, error.__traceback__)
                self.log("error", "".join(lines).rstrip(), {})
        return self._said() + messages.message("error", **fields)

    def _said(self) -> bytes:
        """Progress and printed text that have not been sent."""
        for level, rest in self._lines.items():
            if rest:
                self.log(level, rest, {})
        self._lines.clear()
        self.is_over = True
        unreported, self._unreported = self._unreported, None
        return unreported or b""


def plain_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON. Those that have no form in it become text."""
    plain = {}
    for name, value in fields.items():
        try:
            plain[name] = msgspec.to_builtins(value, enc_hook=to_plain, str_keys=True)
        except (NotImplementedError, TypeError, ValueError, RecursionError):
            plain[name] = repr(value)
    return plain


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "its text cannot be made"


def _causes(error: BaseException) -> list[str]:
    causes: list[str] = []
    seen = {id(error)}
    while len(causes) < _MAX_CAUSES:
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        text = _text(cause)
        name = type_name(type(cause))
        causes.append(f"{name}: {text}" if text else name)
        error = cause
    return causes


def _users_part(error: BaseException) -> Any:
    """The traceback without the frames of the host."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        at = at.tb_next
    return at
