"""Raddle: call a function on a warm worker, queue it so that it cannot be lost, or isolate it."""

from ._app import App, default_app, routine
from ._codec import CannotEncode
from ._companion import shutdown
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
    CompanionLost,
    Denied,
    Error,
    Failed,
    Invalid,
    Lost,
    NoWorkers,
    NotFound,
    Permanent,
    RemoteError,
    RemoteTraceback,
    TaskCancelled,
    TaskError,
    TaskExpired,
    TaskFailed,
    TaskKilled,
    TaskTimedOut,
    TimedOut,
    Unavailable,
    Unconfirmed,
    UnknownRoutine,
)
from ._handler import Handler, Job
from ._options import Limits, Retry, TaskOptions
from ._requests import configure
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
from ._task import CommandResult, Event, Task, TaskStatus, arun, asubmit_command, run, submit_command, task
from ._verbs import aunschedule, unschedule

__all__ = [
    "AbstractWorker",
    "Again",
    "App",
    "Arguments",
    "BrokerError",
    "CallError",
    "Cancelled",
    "CannotEncode",
    "Collector",
    "CommandResult",
    "CompanionLost",
    "Context",
    "Denied",
    "Error",
    "Event",
    "Failed",
    "Handler",
    "Invalid",
    "Job",
    "Limits",
    "Lost",
    "NoWorkers",
    "NotFound",
    "Permanent",
    "Process",
    "ProcessGroup",
    "ProcessManager",
    "RemoteError",
    "RemoteTraceback",
    "Retry",
    "Routine",
    "StreamRoutine",
    "Task",
    "TaskCancelled",
    "TaskError",
    "TaskExpired",
    "TaskFailed",
    "TaskKilled",
    "TaskOptions",
    "TaskStatus",
    "TaskTimedOut",
    "TimedOut",
    "Trigger",
    "Unavailable",
    "Unconfirmed",
    "UnknownRoutine",
    "WorkerSettings",
    "arun",
    "asubmit_command",
    "aunschedule",
    "cancelled",
    "chain",
    "check_cancelled",
    "configure",
    "current",
    "default_app",
    "log",
    "progress",
    "routine",
    "run",
    "shutdown",
    "submit_command",
    "task",
    "unschedule",
]

for _name in __all__:
    # Messages name what programs import, not where it is defined.
    _value = globals()[_name]
    if isinstance(_value, type) and issubclass(_value, BaseException):
        _value.__module__ = __name__
