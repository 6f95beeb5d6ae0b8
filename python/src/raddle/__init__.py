"""Raddle: call a function on a warm worker, queue it so that it cannot be lost, or isolate it."""

from typing import TYPE_CHECKING

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
from ._task import CommandResult, Event, Task, TaskStatus, arun, asubmit_command, run, submit_command, task
from ._verbs import aunschedule, unschedule

if TYPE_CHECKING:
    from ._pool import (
        BrokerDiscovery,
        DnsDiscovery,
        FileDiscovery,
        LanDiscovery,
        LocalDiscovery,
        PoolWorker,
        WorkerCredentials,
        WorkerPool,
        current_pool,
    )
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
    "AbstractWorker",
    "Again",
    "App",
    "Arguments",
    "BrokerDiscovery",
    "BrokerError",
    "CallError",
    "Cancelled",
    "CannotEncode",
    "Collector",
    "CommandResult",
    "CompanionLost",
    "Context",
    "Denied",
    "DnsDiscovery",
    "Error",
    "Event",
    "Failed",
    "FileDiscovery",
    "Handler",
    "Invalid",
    "Job",
    "LanDiscovery",
    "Limits",
    "LocalDiscovery",
    "Lost",
    "NoWorkers",
    "NotFound",
    "Permanent",
    "PoolWorker",
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
    "WorkerCredentials",
    "WorkerPool",
    "WorkerSettings",
    "arun",
    "asubmit_command",
    "aunschedule",
    "cancelled",
    "chain",
    "check_cancelled",
    "configure",
    "current",
    "current_pool",
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
    _value = globals().get(_name)
    if isinstance(_value, type) and issubclass(_value, BaseException):
        _value.__module__ = __name__

#: Names that programs need less often: their modules are imported with the first use.
_LATER = {
    "AbstractWorker": ".groups",
    "BrokerDiscovery": "._pool",
    "Collector": ".groups",
    "DnsDiscovery": "._pool",
    "FileDiscovery": "._pool",
    "LanDiscovery": "._pool",
    "LocalDiscovery": "._pool",
    "PoolWorker": "._pool",
    "Process": ".groups",
    "ProcessGroup": ".groups",
    "ProcessManager": ".groups",
    "Trigger": ".groups",
    "WorkerCredentials": "._pool",
    "WorkerPool": "._pool",
    "WorkerSettings": ".groups",
    "current_pool": "._pool",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        from importlib import import_module

        if name == "groups":
            return import_module(".groups", __name__)
        if name not in _LATER:
            raise AttributeError(f"module 'raddle' has no attribute '{name}'")
        value = globals()[name] = getattr(import_module(_LATER[name], __name__), name)
        return value

    def __dir__():
        return sorted({*globals(), *_LATER})
