"""Raddle: call a function on a warm worker, queue it so that it cannot be lost, or isolate it."""

from ._app import App, default_app, routine
from ._codec import CannotEncode
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
from .groups import (
    AbstractWorker,
    Collector,
    Process,
    ProcessGroup,
    ProcessManager,
    Trigger,
    WorkerSettings,
)

__all__ = [
    "WorkerSettings",
    "ProcessManager",
    "ProcessGroup",
    "Process",
    "Collector",
    "AbstractWorker",
    "Again",
    "App",
    "Arguments",
    "BrokerError",
    "CallError",
    "Cancelled",
    "CannotEncode",
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

for _name in __all__:
    # Messages name what programs import, not where it is defined.
    _value = globals()[_name]
    if isinstance(_value, type) and issubclass(_value, BaseException):
        _value.__module__ = __name__
