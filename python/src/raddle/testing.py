"""A broker for tests: tasks run in this process, through the codec and the host's own code.

`inline` runs each task when it is submitted; `manual` keeps tasks until `drain()`, with a clock
that only `advance()` moves. `raddle.pytest_plugin` makes fixtures of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from . import _companion
from ._app import App, all_apps
from ._codec import Encoding, decode, encode
from ._context import _CURRENT
from ._options import Span, span_text
from ._routine import AnyRoutine
from .host import messages
from .host.attempt import Attempt

Mode = Literal["inline", "manual"]
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


@dataclass
class SubmittedTask:
    """A task that code under test has submitted."""

    tid: str
    spec: dict[str, Any]
    #: Seconds on the clock of the test at which it may run.
    due: float
    state: str = "created"
    #: How many attempts it has had.
    attempts: int = 0
    #: How many of them have failed.
    failures: int = 0
    #: Its value, as JSON.
    value: Any = None
    #: Why it failed.
    error: dict[str, Any] | None = None
    #: What it has logged and printed.
    log: list[str] = field(default_factory=list)
    #: Percent and text of its reports of progress.
    progress: list[tuple[float | None, str]] = field(default_factory=list)

    @property
    def routine(self) -> str:
        """The name of its routine; empty for a command."""
        return str(self.spec["target"].get("routine", ""))

    @property
    def args(self) -> list[Any]:
        """Its positional arguments, as JSON."""
        return list(self.spec.get("args", []))

    @property
    def kwargs(self) -> dict[str, Any]:
        """Its named arguments, as JSON."""
        return dict(self.spec.get("kwargs", {}))


class TestBroker:
    """Takes in the requests of this program, in the place of a companion."""

    __test__ = False

    def __init__(self, mode: Mode = "inline", apps: Sequence[App] | None = None) -> None:
        self.mode = mode
        #: All tasks, oldest first.
        self.tasks: list[SubmittedTask] = []
        #: Schedules by name.
        self.schedules: dict[str, dict[str, Any]] = {}
        #: The time of the test in seconds.
        self.now = 0.0
        self._apps = apps
        self._numbers = itertools.count(1)

    def submitted(
        self, routine: AnyRoutine | str | None = None, *, args: Sequence[Any] | None = None
    ) -> list[SubmittedTask]:
        """The tasks of a routine, with these arguments if they are given."""
        name = routine.name if isinstance(routine, AnyRoutine) else routine
        wanted = None if args is None else decode(encode(list(args)))
        return [
            task
            for task in self.tasks
            if (name is None or task.routine == name) and (wanted is None or task.args == wanted)
        ]

    def drain(self) -> int:
        """Runs all tasks that are due, with those that they submit. Returns how many attempts ran."""
        return asyncio.run(self.adrain())

    async def adrain(self) -> int:
        """Runs all tasks that are due, with those that they submit. Returns how many attempts ran."""
        count = 0
        while True:
            due = [task for task in self.tasks if task.state == "created" and task.due <= self.now]
            if not due:
                return count
            # Higher priorities first, as a worker has it.
            task = min(due, key=lambda task: (-int(task.spec.get("priority", 5)), task.due, task.tid))
            await self._attempt(task)
            count += 1

    def advance(self, span: Span) -> int:
        """Moves the clock, and runs what has become due on the way."""
        return asyncio.run(self.aadvance(span))

    async def aadvance(self, span: Span) -> int:
        """Moves the clock, and runs what has become due on the way."""
        end = self.now + seconds(span)
        count = 0
        while True:
            waiting = [task.due for task in self.tasks if task.state == "created" and task.due <= end]
            self.now = max(self.now, min(waiting, default=end))
            count += await self.adrain()
            if not waiting:
                return count

    @contextmanager
    def installed(self) -> Iterator[TestBroker]:
        """Takes the place of the companion."""
        connection, loop_connection = _companion.connection, _companion.loop_connection
        replaced: Any = _companion
        replaced.connection = lambda: _Connection(self)
        replaced.loop_connection = lambda: _LoopConnection(self)
        try:
            yield self
        finally:
            replaced.connection, replaced.loop_connection = connection, loop_connection

    async def request(self, request: dict[str, Any]) -> tuple[Any, bytes | None]:
        """Answers a request, as a companion does."""
        ((verb, fields),) = request.items()
        answer: Callable[[dict[str, Any]], Any] | None = getattr(self, f"_on_{verb}", None)
        if answer is None:
            raise NotImplementedError(
                f"the test broker has no '{verb}': mark the test with @pytest.mark.raddle('live')"
            )
        value = answer(fields)
        found: tuple[Any, bytes | None] = await value if inspect.isawaitable(value) else value
        return found

    def _on_open(self, _: dict[str, Any]) -> Any:
        return {"broker": 0}, None

    async def _on_submit(self, fields: dict[str, Any]) -> Any:
        return [await self._submit(decode(bytes(raw))) for raw in fields["tasks"]], None

    async def _submit(self, spec: dict[str, Any]) -> tuple[str, bool]:
        key = spec.get("unique_key")
        for task in self.tasks:
            if key is not None and task.spec.get("unique_key") == key and task.state == "created":
                return task.tid, True
        delay = seconds(spec.get("delay", 0))
        task = SubmittedTask(f"1{next(self._numbers):018}", spec, self.now + delay)
        self.tasks.append(task)
        if self.mode == "inline":
            while task.state == "created" and task.due <= self.now:
                await self._attempt(task)
        return task.tid, False

    async def _on_result(self, fields: dict[str, Any]) -> Any:
        task = self._find(fields["tid"])
        if task.state == "created":
            await self.adrain()
        if task.state == "created":
            raise AssertionError(
                f"the task of {task.routine} waits until {task.due} s, and it is {self.now} s: "
                "call raddle_broker.advance()"
            )
        record = {"tid": task.tid, "state": task.state, "attempts": task.attempts}
        if task.state == "completed":
            return record, encode(task.value)
        error = task.error or {}
        record.update(message=error.get("message", ""), exit={"kind": "error"})
        return record, encode(error.get("value"))

    def _on_status(self, fields: dict[str, Any]) -> Any:
        task = self._find(fields["tid"])
        record = {
            "tid": task.tid,
            "state": task.state,
            "attempt": task.attempts,
            "failures": task.failures,
            "losses": 0,
            "paused": False,
            "dead": task.state == "failed",
            "created_at": "1970-01-01T00:00:00Z",
            "spec": task.spec,
        }
        return record, None

    def _on_logs(self, fields: dict[str, Any]) -> Any:
        return None, "\n".join(self._find(fields["tid"]).log).encode()

    def _on_schedule(self, fields: dict[str, Any]) -> Any:
        schedule = decode(bytes(fields["schedule"]))
        self.schedules[schedule["name"]] = schedule
        return None, None

    def _on_unschedule(self, fields: dict[str, Any]) -> Any:
        self.schedules.pop(fields["name"], None)
        return None, None

    def _on_control(self, fields: dict[str, Any]) -> Any:
        task = self._find(fields["tid"])
        if task.state == "created":
            command = fields["message"]["command"]
            task.state = "killed" if command == "KILL" else "cancelled"
        return None, None

    def _find(self, tid: str) -> SubmittedTask:
        return next(task for task in self.tasks if task.tid == tid)

    async def _attempt(self, task: SubmittedTask) -> None:
        """Runs an attempt of a task, and decides what follows."""
        task.attempts += 1
        routine = find_routine(task.routine, self._apps)
        start = messages.Start(1, task.routine, kwargs=task.kwargs, tid=task.tid, attempt=task.attempts)
        chained = await run_attempt(routine, start, encode(task.args), task)
        if task.error is None:
            task.state = "completed"
            for spec in chained:
                await self._submit(spec)
            return
        retry = task.spec.get("retry", {})
        # A routine that asks to run again has not failed.
        task.failures += "retry_after_ms" not in task.error
        if task.error.get("permanent") or task.failures >= retry.get("attempts", 1):
            task.state = "failed"
            return
        after = task.error.get("retry_after_ms")
        task.error = None
        if after is not None:
            task.due = self.now + after / 1000
            return
        pause = seconds(retry.get("base", 1)) * 2 ** (task.failures - 1)
        # Inline tasks do not wait.
        task.due = self.now + (0 if self.mode == "inline" else pause)


class _Connection:
    """The connection of a thread."""

    def __init__(self, broker: TestBroker) -> None:
        self._broker = broker
        self.companion = self
        self.brokers: dict[Any, int] = {}

    def request(self, request: dict[str, Any], payload: bytes | None = None) -> Any:
        return _run(self._broker.request(request))


class _LoopConnection(_Connection):
    """The connection of an event loop."""

    async def request(self, request: dict[str, Any], payload: bytes | None = None) -> Any:
        return await self._broker.request(request)


class _Recorder:
    """Takes in the messages of an attempt, in the place of a host."""

    def __init__(self, task: SubmittedTask) -> None:
        self._task = task
        self.chained: list[dict[str, Any]] = []

    def post(self, data: bytes) -> None:
        for kind, fields, payload in _frames(data):
            if kind == "log":
                self._task.log.append(fields["message"])
            elif kind == "progress":
                self._task.progress.append((fields.get("percent"), fields.get("message", "")))
            elif kind == "chain":
                self.chained.append(fields["spec"])
            elif kind == "error":
                self._task.error = fields
            elif kind == "result":
                self._task.value = decode(payload) if payload else None

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        """Progress that comes soon after another is recorded with the answer."""


async def run_attempt(
    routine: AnyRoutine, start: messages.Start, payload: bytes, task: SubmittedTask
) -> list[dict[str, Any]]:
    """Runs one attempt as a host does. Returns the specs that it has chained."""
    recorder: Any = _Recorder(task)
    attempt = Attempt(recorder, start, routine.options.retry)
    context = contextvars.copy_context()
    context.run(_CURRENT.set, attempt)

    async def run() -> bytes:
        try:
            args, kwargs = routine.signature.decode(payload, start.kwargs, attempt.encoding)
            value = routine.function(*args, **kwargs)
            if inspect.isasyncgen(value):
                value = [item async for item in value]
            elif inspect.isgenerator(value):
                value = list(value)
            elif inspect.isawaitable(value):
                value = await value
            return attempt.succeed(value)
        except Exception as error:
            return attempt.fail(error)

    recorder.post(await context.run(asyncio.ensure_future, run()))
    chained: list[dict[str, Any]] = recorder.chained
    return chained


def run_job(
    routine: AnyRoutine, *args: Any, attempt: int = 1, kwargs: dict[str, Any] | None = None
) -> SubmittedTask:
    """Runs one attempt of a routine, through the codec, and returns what came of it."""
    spec = {"target": {"routine": routine.name}, "args": list(args), "kwargs": kwargs or {}}
    task = SubmittedTask("1".zfill(19), decode(encode(spec)), 0.0, attempts=attempt)
    start = messages.Start(1, routine.name, kwargs=task.kwargs, tid=task.tid, attempt=attempt)
    _run(run_attempt(routine, start, encode(task.args), task))
    task.state = "completed" if task.error is None else "failed"
    return task


def find_routine(name: str, apps: Sequence[App] | None) -> AnyRoutine:
    """The routine of a name, in these apps or in any that exists."""
    for app in all_apps() if apps is None else apps:
        if name in app.routines:
            return app.routines[name]
    raise LookupError(f"no app of this program has the routine '{name}'")


def seconds(span: Any) -> float:
    """A time span in seconds."""
    text = span if isinstance(span, str) else span_text(span)
    parts = re.findall(r"([\d.]+)\s*([a-z]*)", text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _run(coroutine: Any) -> Any:
    """Runs a coroutine to its end, also where an event loop runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    done: list[Any] = []

    def work() -> None:
        try:
            done.append((asyncio.run(coroutine), None))
        except BaseException as error:
            done.append((None, error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    value, error = done[0]
    if error is not None:
        raise error
    return value


def _frames(data: bytes) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """The messages of a host in bytes."""
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        head, _, payload = data[at + 4 : end].partition(b"\n")
        ((kind, fields),) = msgspec.json.decode(head).items()
        yield kind, fields, payload
        at = end


__all__ = ["Encoding", "Mode", "SubmittedTask", "TestBroker", "find_routine", "run_job"]
