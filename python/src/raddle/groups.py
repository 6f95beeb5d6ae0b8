"""Process groups: workers with state that take the events of their queues.

`raddle up --python shop.groups:manager` keeps the processes, and `python -m raddle.groups NAME`
prints them as a `raddle.toml`.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Union

import msgspec

from ._context import current
from ._errors import Again, Permanent
from ._options import Limits, Retry, Span, span_text
from ._routine import AnyRoutine, default_name
from ._signature import Signature

if TYPE_CHECKING:
    from ._app import App

# `python -m raddle.groups` finds this module imported by the package, which is no problem.
warnings.filterwarnings("ignore", message="'raddle.groups' found in sys.modules", category=RuntimeWarning)
#: Before the name of the routine of a worker, so that no function has the same.
_PREFIX = "group:"


class Fail(Permanent):
    """Raised in a worker: the event failed, and is not tried again."""


class Reject(Permanent):
    """Raised in a worker: the event is of no use."""


class Retrying(Again):
    """Raised in a worker: the event is tried again, as the settings say."""


@dataclass(frozen=True)
class Trigger:
    """When a worker gets an event without a message."""

    every: Span | None = None
    cron: str | None = None
    timezone: str | None = None
    missed: Literal["skip", "one", "all"] | None = None
    lifetime: Span | None = None
    jitter: Span | None = None

    def to_json(self) -> dict[str, Any]:
        """The trigger as in a `raddle.toml`."""
        fields = dict(vars(self))
        for name in ("every", "lifetime", "jitter"):
            if fields[name] is not None:
                fields[name] = span_text(fields[name])
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class WorkerSettings:
    """How events reach a worker, and what happens to those that fail."""

    slug: str
    sources: Iterable[str] = ()
    execution_timeout: Span = 60
    on_error: Literal["ack", "retry", "dead"] = "ack"
    retry: Retry | None = None
    trigger: Trigger | None = None

    def to_json(self) -> dict[str, Any]:
        """The settings as in a `raddle.toml`."""
        fields: dict[str, Any] = {
            "slug": self.slug,
            "sources": sorted(self.sources),
            "execution_timeout": span_text(self.execution_timeout),
            "on_error": self.on_error,
            "routine": _PREFIX + self.slug,
        }
        if self.retry is not None:
            fields["retry"] = self.retry.to_json()
        if self.trigger is not None:
            fields["trigger"] = self.trigger.to_json()
        return fields


class Collector:
    """Takes events, and publishes them in the step that completes the attempt, or never."""

    def __init__(self, workers: Iterable[type[AbstractWorker]]) -> None:
        self._workers = list(workers)

    def add(self, source: str, event: Any) -> None:
        """Adds an event for every worker of the manager that has this source."""
        readers = [worker.settings for worker in self._workers if source in worker.settings.sources]
        if not readers:
            raise LookupError(f"no worker of this manager has the source '{source}'")
        for settings in readers:
            target = {"routine": _PREFIX + settings.slug}
            spec: dict[str, Any] = {"target": target, "queue": settings.slug}
            spec["timeout"] = span_text(settings.execution_timeout)
            if isinstance(event, Mapping):
                spec["kwargs"] = dict(event)
            else:
                spec["args"] = list(event) if isinstance(event, (list, tuple)) else [event]
            if settings.on_error == "retry":
                spec["retry"] = (settings.retry or Retry()).to_json()
            current().chain(spec)

    add_event = add


class AbstractWorker(ABC):
    """A worker of a group: `__call__` takes an event, as a function or a coroutine."""

    settings: ClassVar[WorkerSettings]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        made = getattr(cls, "_get_settings", None)
        if made is not None and "settings" not in cls.__dict__:
            warnings.warn(
                f"{cls.__name__}: write `settings = WorkerSettings(...)` instead of _get_settings()",
                DeprecationWarning,
                stacklevel=2,
            )
            cls.settings = made()

    async def startup(self) -> None:
        """Runs once in each process, before the first event."""

    async def shutdown(self) -> None:
        """Runs once in each process, after the last event."""

    #: Takes an event: its fields by name, or its message as the only argument.
    __call__: Callable[..., Any]


@dataclass
class Process:
    """A process with its workers."""

    workers: list[type[AbstractWorker]]
    name: str = ""
    replicas: int = 1
    concurrency: int = 1
    hosts: int = 1
    shutdown_timeout: Span = 20
    start_timeout: Span = 30
    hang_timeout: Span = 10
    restart: Literal["always", "on-failure", "never"] = "always"
    max_tasks: int | None = None
    max_age: Span | None = None
    max_rss_mb: int | None = None
    after: list[str] = field(default_factory=list)
    caps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("a process needs a worker")
        if not self.name:
            self.name = self.workers[0].settings.slug

    def to_json(self, host: list[str]) -> dict[str, Any]:
        """The process as in a `raddle.toml`."""
        fields: dict[str, Any] = {
            "replicas": self.replicas,
            "concurrency": self.concurrency,
            "hosts": self.hosts,
            "host": [*host, self.name],
            "shutdown_timeout": span_text(self.shutdown_timeout),
            "start_timeout": span_text(self.start_timeout),
            "hang_timeout": span_text(self.hang_timeout),
            "restart": self.restart,
            "max_tasks": self.max_tasks,
            "max_age": None if self.max_age is None else span_text(self.max_age),
            "max_rss_mb": self.max_rss_mb,
            "after": self.after,
            "caps": self.caps,
            "worker": [worker.settings.to_json() for worker in self.workers],
        }
        return {name: value for name, value in fields.items() if value not in (None, [])}


class ProcessGroup:
    """A process in several replicas."""

    def __init__(self, process: Process, replicas: int) -> None:
        self.process = process
        process.replicas = replicas


class ProcessManager:
    """The processes of a program."""

    def __init__(
        self, processes: Iterable[Union[Process, ProcessGroup]], queue_url: str | None = None
    ) -> None:
        found = [one.process if isinstance(one, ProcessGroup) else one for one in processes]
        self.processes = {process.name: process for process in found}
        if len(self.processes) != len(found):
            raise ValueError("two processes have the same name: give one of them a name=")
        self.queue_url = queue_url

    @property
    def workers(self) -> list[type[AbstractWorker]]:
        """The workers of all processes."""
        return [worker for process in self.processes.values() for worker in process.workers]

    def app_of(self, process: str) -> App:
        """The app that a process runs."""
        from ._app import App

        app = App(process)
        collector = Collector(self.workers)
        for kind in self.processes[process].workers:
            worker = kind()
            app.startup_hooks.append(worker.startup)
            app.shutdown_hooks.append(worker.shutdown)
            app.add_routine(_routine_of(worker, collector))
        return app

    def to_json(self, reference: str) -> dict[str, Any]:
        """The processes as in a `raddle.toml`."""
        host = [sys.executable, "-u", "-m", "raddle.host", reference]
        return {name: process.to_json(host) for name, process in self.processes.items()}

    def run(self) -> NoReturn:
        """Becomes the manager of the processes: `raddle up` with this manager."""
        from ._binary import find_binary

        name = _reference_of(self)
        url = [] if self.queue_url is None else ["--queue-url", self.queue_url]
        os.execv(find_binary(), ["raddle", "up", *url, "--python", name])


def _routine_of(worker: AbstractWorker, collector: Collector) -> AnyRoutine:
    """The routine of a worker."""
    call = worker.__call__
    takes_collector = "collector" in inspect.signature(call).parameters
    if inspect.iscoroutinefunction(call):

        async def run(*args: Any, **kwargs: Any) -> Any:
            if takes_collector:
                kwargs["collector"] = collector
            return await call(*args, **kwargs)

    else:

        def run(*args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            if takes_collector:
                kwargs["collector"] = collector
            return call(*args, **kwargs)

    routine = AnyRoutine(run, {"name": _PREFIX + worker.settings.slug})
    routine.signature = Signature(routine.name, call, skip=["collector"])
    return routine


def _reference_of(manager: ProcessManager) -> str:
    """`MODULE:NAME` of a manager in the main program."""
    main = sys.modules["__main__"]
    for name, value in vars(main).items():
        if value is manager:

            def here() -> None: ...

            here.__module__, here.__qualname__ = "__main__", name
            return default_name(here)
    raise LookupError("the manager must be a global variable of the program that runs it")


def groups_of(found: Any, reference: str) -> dict[str, Any]:
    """The processes of a manager, or of an app: one process for its queues and triggers."""
    if isinstance(found, ProcessManager):
        return found.to_json(reference)
    from ._app import App

    if not isinstance(found, App):
        raise TypeError(f"'{reference}' is neither a raddle.App nor a raddle.ProcessManager")
    queues = {found.defaults.get("queue", "default")}
    queues.update(routine.options.settings.get("queue", "default") for routine in found.routines.values())
    # Ordinary workers serve the default queue, and groups have queues of their own.
    workers: list[dict[str, Any]] = [{"slug": queue} for queue in sorted(queues - {"default"})]
    for name, trigger in found.triggers:
        slug = "".join(each if each.isalnum() or each in "._-" else "-" for each in name)
        workers.append({"slug": slug[-64:], "routine": name, "trigger": trigger.to_json()})
    if not workers:
        raise TypeError(
            f"'{reference}' has nothing to keep up, neither queues of its own nor triggers: "
            f"start it with 'raddle worker start --python {reference}'"
        )
    host = [sys.executable, "-u", "-m", "raddle.host", reference]
    hosts = os.cpu_count() or 1
    process = {"concurrency": 100 * hosts, "hosts": hosts, "host": host, "worker": workers}
    return {found.name: process}


def to_toml(processes: Mapping[str, Mapping[str, Any]]) -> str:
    """Processes as a `raddle.toml`."""
    lines: list[str] = []
    for name, process in processes.items():
        heading = f"process.{_value(name)}"
        lines.append(f"[{heading}]")
        lines += [f"{key} = {_value(value)}" for key, value in process.items() if key != "worker"]
        for worker in process["worker"]:
            lines.append(f"[[{heading}.worker]]")
            lines += [f"{key} = {_value(value)}" for key, value in worker.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return msgspec.json.encode(value).decode()


def main() -> None:
    """Prints the groups of an app or manager."""
    from .host.loader import CannotLoad, load_object

    if len(sys.argv) != 2:
        sys.exit("usage: python -m raddle.groups MODULE:APP")
    # The module of this program is not the one that apps import.
    from raddle import groups

    try:
        found = load_object(sys.argv[1])
        print(groups.to_toml(groups.groups_of(found, sys.argv[1])), end="")
    except (CannotLoad, TypeError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
