"""Errors of Raddle, and what a routine raises to say how its attempt ends."""

from __future__ import annotations

from typing import Any

__all__ = [
    "Again",
    "Arguments",
    "BrokerError",
    "CallError",
    "Cancelled",
    "Error",
    "Failed",
    "Permanent",
]


class Error(Exception):
    """The base of all errors of Raddle."""


class BrokerError(Error):
    """The broker could not do what it was asked to do."""


class CallError(Error):
    """A call failed before or besides the routine."""

    #: Whether the routine may have begun.
    may_have_begun: bool = False


class Arguments(CallError):
    """The arguments do not fit the routine, or cannot be encoded."""


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
