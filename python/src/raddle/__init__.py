"""Raddle: call a function on a warm worker, queue it so that it cannot be lost, or isolate it."""

from ._app import App, Trigger, default_app, routine
from ._context import (
    Context,
    cancelled,
    chain,
    check_cancelled,
    current,
    log,
    progress,
)
from ._errors import (
    Again,
    Arguments,
    BrokerError,
    CallError,
    Cancelled,
    Error,
    Failed,
    Permanent,
)
from ._handler import Handler, Job
from ._options import Limits, Retry, TaskOptions
from ._routine import Routine, StreamRoutine

__all__ = [
    "Again",
    "App",
    "Arguments",
    "BrokerError",
    "CallError",
    "Cancelled",
    "Context",
    "Error",
    "Failed",
    "Handler",
    "Job",
    "Limits",
    "Permanent",
    "Retry",
    "Routine",
    "StreamRoutine",
    "TaskOptions",
    "Trigger",
    "cancelled",
    "chain",
    "check_cancelled",
    "current",
    "default_app",
    "log",
    "progress",
    "routine",
]
