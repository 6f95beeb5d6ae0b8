"""The main thread of a host with plain routines: it runs one at a time, and can be interrupted.

Only the main thread of a Python process runs signal handlers. The event loop, which reads the
worker's messages, has a thread of its own then: it sends the main thread `SIGUSR1`, and the handler
raises `Cancelled` in the routine, also out of a blocking call such as `time.sleep`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Any

from .._errors import Cancelled
from .attempt import Attempt

_SIGNAL = signal.SIGUSR1


class Protection:
    """A part of the main thread that an interruption must not cut in two."""

    def __init__(self, thread: MainThread) -> None:
        self._thread = thread

    def __enter__(self) -> None:
        if threading.get_ident() == self._thread.ident:
            self._thread.protected += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        thread = self._thread
        if threading.get_ident() == thread.ident:
            thread.protected -= 1
            if thread.protected == 0 and thread.is_due:
                thread.raise_cancelled()


class MainThread:
    """Runs jobs one after the other until it is closed."""

    def __init__(self) -> None:
        self.ident = threading.main_thread().ident or 0
        self.protected = 0
        #: Whether an interruption waits for the end of a protected part.
        self.is_due = False
        self._jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._attempt: Attempt | None = None

    def submit(self, job: Callable[[], Any]) -> None:
        """Adds a job."""
        self._jobs.put(job)

    def close(self) -> None:
        """Ends the thread after the jobs that wait."""
        self._jobs.put(None)

    def run(self) -> None:
        """Runs jobs. Called in the main thread."""
        signal.signal(_SIGNAL, self._handle_signal)
        while True:
            try:
                job = self._jobs.get()
                if job is None:
                    return
                job()
            except Cancelled:
                # It came when its attempt was over.
                continue

    def call(self, attempt: Attempt, function: Callable[[], Any]) -> bytes:
        """Runs user code, and returns the answer of its attempt."""
        try:
            return self._call(attempt, function)
        except Cancelled as error:
            # It was interrupted when user code had ended.
            self._attempt = None
            return attempt.fail(error)

    def _call(self, attempt: Attempt, function: Callable[[], Any]) -> bytes:
        if attempt.is_cancelled:
            raise Cancelled(attempt.cancel_reason or "stop")
        try:
            self._attempt = attempt
            value = function()
            self._attempt = None
        except BaseException as error:
            self._attempt = None
            return attempt.fail(error)
        return attempt.succeed(value)

    def interrupt(self, attempt: Attempt) -> None:
        """Raises `Cancelled` in the main thread if this attempt runs there. From any thread."""
        if self._attempt is attempt:
            signal.pthread_kill(self.ident, _SIGNAL)

    def raise_cancelled(self) -> None:
        """Raises `Cancelled` if the attempt that runs has to end."""
        self.is_due = False
        attempt = self._attempt
        if attempt is not None and attempt.cancel_reason is not None:
            raise Cancelled(attempt.cancel_reason)

    def _handle_signal(self, signum: int, frame: FrameType | None) -> None:
        if self.protected:
            self.is_due = True
        else:
            self.raise_cancelled()
