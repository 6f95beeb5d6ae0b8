"""The attempt that code belongs to: progress, logs, chains and cancellation."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from ._errors import Cancelled, Error


class Context(ABC):
    """An attempt of a task, or a call. It is what `current()` returns."""

    #: The task; empty in a call.
    tid: str
    #: The number of the attempt.
    attempt: int
    #: The name of the routine.
    routine: str
    #: Seconds on the clock of `time.monotonic()` at which the attempt has to end.
    deadline: float | None
    #: The W3C trace context, with this attempt as the span.
    traceparent: str | None
    #: The fencing token of the attempt, for effects elsewhere.
    fencing_token: int

    @property
    def remaining(self) -> float | None:
        """Seconds that are left until the timeout."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    @abstractmethod
    def is_cancelled(self) -> bool:
        """Whether the attempt has to end."""

    @abstractmethod
    def progress(self, percent: float | None, message: str) -> None:
        """Reports progress."""

    @abstractmethod
    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        """Writes to the log of the task."""

    @abstractmethod
    def chain(self, spec: Mapping[str, Any]) -> None:
        """Submits a task if this attempt succeeds."""


_CURRENT: ContextVar[Context | None] = ContextVar("raddle_attempt", default=None)


def current_or_none() -> Context | None:
    """The attempt that this code belongs to, if there is one."""
    return _CURRENT.get()


def current() -> Context:
    """The attempt that this code belongs to."""
    context = _CURRENT.get()
    if context is None:
        raise Error("no attempt runs here: call this inside a routine")
    return context


def progress(percent: float | None = None, message: str = "") -> None:
    """Reports how far the attempt has come. Outside of a routine it does nothing."""
    context = _CURRENT.get()
    if context is not None:
        context.progress(percent, message)


def log(message: str, level: str = "info", **fields: Any) -> None:
    """Writes to the log of the task. Outside of a routine it does nothing."""
    context = _CURRENT.get()
    if context is not None:
        context.log(level, message, fields)


def cancelled() -> bool:
    """Whether the attempt has to end. Long loops on threads ask for this."""
    context = _CURRENT.get()
    return context is not None and context.is_cancelled


def check_cancelled() -> None:
    """Raises `Cancelled` if the attempt has to end."""
    if cancelled():
        raise Cancelled()


def chain(spec: Mapping[str, Any]) -> None:
    """Submits a task, given as its spec, if this attempt succeeds."""
    current().chain(spec)
