"""Printed and logged text of routines goes to the log of their task."""

from __future__ import annotations

import io
import logging
import sys
from typing import Any, TextIO

from .._context import current_or_none
from .attempt import Attempt

#: Attributes that every record has.
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {
    "message",
    "asctime",
    "taskName",
}


class TaskStream(io.TextIOBase):
    """Standard output or error: lines of a routine go to the log of its task."""

    def __init__(self, stream: TextIO, level: str) -> None:
        self._stream = stream
        self._level = level

    def write(self, text: str) -> int:
        attempt = current_or_none()
        if isinstance(attempt, Attempt):
            attempt.print_text(self._level, text)
        else:
            self._stream.write(text)
        return len(text)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def buffer(self) -> Any:
        """The binary stream under it, which no task is known to."""
        return self._stream.buffer


class TaskLogHandler(logging.Handler):
    """Records of a routine go to the log of its task, others to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            attempt = current_or_none()
            if not isinstance(attempt, Attempt):
                sys.stderr.write(f"{record.levelname} {record.name}: {self.format(record)}\n")
                return
            extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
            attempt.log(level_name(record.levelno), self.format(record), extra)
        except Exception:
            self.handleError(record)


def level_name(level: int) -> str:
    """The level of a record in the log of a task."""
    if level >= logging.ERROR:
        return "error"
    if level >= logging.WARNING:
        return "warn"
    return "info" if level >= logging.INFO else "debug"


def capture_output() -> None:
    """Sends what is printed and logged from here on to the log of its task."""
    sys.stdout = TaskStream(sys.stdout, "info")
    sys.stderr = TaskStream(sys.stderr, "warn")
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(TaskLogHandler())
        if root.level == logging.WARNING:
            root.setLevel(logging.INFO)
