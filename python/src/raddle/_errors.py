"""Errors of Raddle, and what a routine raises to say how its attempt ends."""

from __future__ import annotations

from typing import Any

__all__ = [
    "Again",
    "Arguments",
    "BrokerError",
    "CallError",
    "Cancelled",
    "CompanionLost",
    "Denied",
    "Error",
    "Failed",
    "Invalid",
    "Lost",
    "NoWorkers",
    "NotFound",
    "Permanent",
    "RemoteError",
    "RemoteTraceback",
    "TaskCancelled",
    "TaskError",
    "TaskExpired",
    "TaskFailed",
    "TaskKilled",
    "TaskTimedOut",
    "TimedOut",
    "Unavailable",
    "Unconfirmed",
    "UnknownRoutine",
]


class Error(Exception):
    """The base of all errors of Raddle."""

    #: What to do, if one command solves it.
    hint: str | None = None


class Invalid(Error, ValueError):
    """The request is wrong: nothing was done."""


class CompanionLost(Error):
    """The companion process ended during a request. The next request starts another one."""


class TimedOut(Error, TimeoutError):
    """The awaited event did not happen in time."""


class BrokerError(Error):
    """The broker could not do what it was asked to do."""


class NotFound(BrokerError, LookupError):
    """There is no such task or schedule."""


class Unavailable(BrokerError):
    """The broker cannot be reached, or is locked or full. Trying again later is safe."""


class Unconfirmed(BrokerError):
    """It is unknown whether the broker has stored what it was sent: check before trying again."""


class TaskError(Error):
    """A task did not complete."""

    def __init__(
        self,
        message: str,
        *,
        tid: str = "",
        state: str = "",
        attempts: int = 0,
        exit_code: int | None = None,
        stderr: str | None = None,
    ) -> None:
        super().__init__(message)
        self.tid = tid
        #: The final state of the task.
        self.state = state
        #: How many attempts it has had.
        self.attempts = attempts
        #: As a shell would show it.
        self.exit_code = exit_code
        #: The last lines that it has written to its standard error.
        self.stderr = stderr


class TaskFailed(TaskError):
    """The task failed, and has no attempts left."""


class TaskTimedOut(TaskError):
    """The task ran longer than its timeout allows."""


class TaskCancelled(TaskError):
    """The task was stopped on request."""


class TaskKilled(TaskError):
    """The task was killed on request."""


class TaskExpired(TaskError):
    """No worker has taken the task within its lifetime."""


class CallError(Error):
    """A call failed before or besides the routine."""

    #: Whether the routine may have begun.
    may_have_begun: bool = False


class Lost(CallError):
    """The worker was lost during the call, or has cancelled it because it stops."""


class NoWorkers(CallError):
    """There is no worker to call."""


class UnknownRoutine(CallError):
    """No worker has a routine of this name."""


class Denied(CallError):
    """The worker does not let this program call the routine."""


class Arguments(CallError):
    """The arguments do not fit the routine, or cannot be encoded."""


class RemoteError(Error):
    """A routine raised an exception whose class this program has not imported."""

    def __init__(self, message: str, type_name: str = "") -> None:
        super().__init__(f"{type_name}: {message}" if type_name else message)
        #: `module:Qualname` of the class.
        self.type_name = type_name


class RemoteTraceback(Exception):
    """The traceback in the other process, as the cause of an exception."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Cancelled(BaseException):
    """Raised in a plain routine that has to end.

    It is no ``Exception``, so that ``except Exception`` does not stop it.
    """

    def __init__(self, reason: str = "stop") -> None:
        super().__init__(f"the attempt has to end: {reason}")
        #: ``stop`` or ``timeout``.
        self.reason = reason


class Again(Exception):
    """Raised in a routine: run it again after a time.

    ``after`` is in seconds; without it the retry policy of the task decides.
    """

    def __init__(self, message: str = "", *, after: float | None = None) -> None:
        super().__init__(message or "the routine asked to run again")
        self.after = after


class Permanent(Exception):
    """Raised in a routine: it failed, and another attempt would fail as well."""


class Failed(Exception):
    """Raised in a routine: it failed with a value that callers in any language can read."""

    def __init__(self, value: Any, *, permanent: bool = False) -> None:
        super().__init__(str(value))
        self.value = value
        self.permanent = permanent
