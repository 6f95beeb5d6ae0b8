"""Tasks that were submitted: their result, state, output and control."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union, cast

import msgspec

from . import _companion, _errors, _remote
from ._codec import decode, encode
from ._options import Span, TaskOptions, TaskSettings, span_seconds
from ._requests import aask, abroker, ask, broker, is_last, no_result, parent_task, submit_request

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
Stream = Literal["stdout", "stderr"]


class Progress(msgspec.Struct):
    """The progress that an attempt has reported."""

    percent: Union[float, None] = None
    message: str = ""


class TaskStatus(msgspec.Struct):
    """The record of a task."""

    tid: str
    #: `created`, `spawning`, `running`, `completed`, `failed`, `timeout`, `cancelled` or `killed`.
    state: str
    attempt: int
    failures: int
    losses: int
    paused: bool
    #: Whether it is in the dead-letter queue.
    dead: bool
    created_at: datetime
    spec: dict[str, Any]
    run_at: Union[datetime, None] = None
    parent: Union[str, None] = None
    worker: Union[str, None] = None
    pid: Union[int, None] = None
    progress: Union[Progress, None] = None
    claimed_at: Union[datetime, None] = None
    finished_at: Union[datetime, None] = None

    @property
    def is_finished(self) -> bool:
        """Whether the state is final."""
        return self.state not in ("created", "spawning", "running")


class Event(msgspec.Struct):
    """A step of a task, or a piece of its output."""

    #: The kind of step, or `stdout` or `stderr`.
    kind: str
    #: The output.
    data: bytes = b""
    #: The step as the broker has recorded it.
    record: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """The output as text."""
        return self.data.decode(errors="replace")


class CommandResult(msgspec.Struct):
    """How a command ended."""

    tid: str
    exit_code: int
    stdout: str
    stderr: str


class Task(Generic[T]):
    """A task in the broker, whose result has the type `T`."""

    __slots__ = ("existing", "tid", "_kind")

    def __init__(self, tid: str, kind: Any = Any, existing: bool = False) -> None:
        #: Its id: 19 digits.
        self.tid = tid
        #: Whether an unfinished task had its unique key already, and this is that one.
        self.existing = existing
        self._kind = kind

    def __repr__(self) -> str:
        return f"<raddle task {self.tid}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and other.tid == self.tid

    def __hash__(self) -> int:
        return hash(self.tid)

    def result(self, timeout: Span | None = None) -> T:
        """Waits for the result. An exception of the routine is raised here too."""
        return ask(self._result(timeout), self._finish, "Task.result()", "Task.aresult()")

    async def aresult(self, timeout: Span | None = None) -> T:
        """Waits for the result. An exception of the routine is raised here too."""
        return await aask(self._result(timeout), self._finish)

    def status(self) -> TaskStatus:
        """Its record."""
        return ask(self._about("status"), _to_status, "Task.status()", "Task.astatus()")

    async def astatus(self) -> TaskStatus:
        """Its record."""
        return await aask(self._about("status"), _to_status)

    def logs(self, stream: Stream | None = None) -> str:
        """Its standard output and error so far."""
        return ask(self._about("logs", stream=stream), _to_text, "Task.logs()", "Task.alogs()")

    async def alogs(self, stream: Stream | None = None) -> str:
        """Its standard output and error so far."""
        return await aask(self._about("logs", stream=stream), _to_text)

    def follow(self) -> Iterator[Event]:
        """Its steps and its output from the beginning, until it is finished."""
        _companion.check_may_block("Task.follow()", "Task.afollow()")
        connection = _companion.connection()
        number = connection.begin(self._about("follow")(broker(connection)))
        is_open = True
        try:
            while True:
                reply, payload = connection.receive(number)
                if is_last(reply):
                    is_open = False
                    return
                yield _to_event(reply.item, payload)
        finally:
            if is_open:
                connection.cancel(number)

    async def afollow(self) -> AsyncIterator[Event]:
        """Its steps and its output from the beginning, until it is finished."""
        connection = _companion.loop_connection()
        number, queue = connection.open_stream(self._about("follow")(await abroker(connection)))
        try:
            while True:
                got = await queue.get()
                if isinstance(got, BaseException):
                    raise got
                reply, payload = got
                if is_last(reply):
                    return
                yield _to_event(reply.item, payload)
        finally:
            connection.close_stream(number)

    def stop(self, *, requeue: bool = False) -> None:
        """Stops it: the routine is cancelled, and killed after its grace."""
        ask(self._control("STOP", requeue), no_result, "Task.stop()", "Task.astop()")

    async def astop(self, *, requeue: bool = False) -> None:
        """Stops it: the routine is cancelled, and killed after its grace."""
        await aask(self._control("STOP", requeue), no_result)

    def kill(self) -> None:
        """Kills it at once, with the processes that it has started."""
        ask(self._control("KILL"), no_result, "Task.kill()", "Task.akill()")

    async def akill(self) -> None:
        """Kills it at once, with the processes that it has started."""
        await aask(self._control("KILL"), no_result)

    def pause(self) -> None:
        """Suspends it."""
        ask(self._control("PAUSE"), no_result, "Task.pause()", "Task.apause()")

    async def apause(self) -> None:
        """Suspends it."""
        await aask(self._control("PAUSE"), no_result)

    def resume(self) -> None:
        """Continues it after a pause."""
        ask(self._control("RESUME"), no_result, "Task.resume()", "Task.aresume()")

    async def aresume(self) -> None:
        """Continues it after a pause."""
        await aask(self._control("RESUME"), no_result)

    def retry(self) -> Task[T]:
        """Submits it again, once it is finished. Returns the new task."""
        return ask(self._about("retry"), self._to_task, "Task.retry()", "Task.aretry()")

    async def aretry(self) -> Task[T]:
        """Submits it again, once it is finished. Returns the new task."""
        return await aask(self._about("retry"), self._to_task)

    def _about(self, verb: str, **fields: Any) -> Any:
        return lambda broker: {verb: {"broker": broker, "tid": self.tid, **fields}}

    def _result(self, timeout: Span | None) -> Any:
        limit = None if timeout is None else _milliseconds(timeout)
        return self._about("result", timeout_ms=limit)

    def _control(self, command: str, requeue: bool = False) -> Any:
        message: dict[str, Any] = {"command": command}
        if requeue:
            message["requeue"] = True
        return self._about("control", message=message)

    def _finish(self, value: Any, payload: bytes | None) -> T:
        if value["state"] != "completed":
            raise failure(value, payload)
        if self._kind is CommandResult:
            stdout = value.get("stdout") or ""
            return cast(T, CommandResult(value["tid"], 0, stdout, value.get("stderr") or ""))
        try:
            return cast(T, decode(payload or b"null", self._kind))
        except (msgspec.ValidationError, TypeError) as error:
            message = f"the result of task {self.tid} is not of the expected type: {error}"
            raise _errors.TaskError(message, tid=self.tid, state="completed") from None

    def _to_task(self, value: Any, _payload: bytes | None) -> Task[T]:
        return Task(value, self._kind)


def task(tid: str, kind: Any = Any) -> Task[Any]:
    """The task with this id, or with these last ten digits. `kind` is the type of its result."""
    return Task(str(tid), kind)


def submit_command(argv: Sequence[str], **settings: Unpack[TaskSettings]) -> Task[CommandResult]:
    """Submits a command, which any worker runs."""
    request = submit_request([_command(argv, settings)])
    return ask(request, _command_task, "submit_command()", "asubmit_command()")


async def asubmit_command(
    argv: Sequence[str], **settings: Unpack[TaskSettings]
) -> Task[CommandResult]:
    """Submits a command, which any worker runs."""
    return await aask(submit_request([_command(argv, settings)]), _command_task)


def run(
    argv: Sequence[str], *, check: bool = True, **settings: Unpack[TaskSettings]
) -> CommandResult:
    """Runs a command as a task, beside this program, and waits for its end.

    It needs no worker. With `check`, a command that fails raises `TaskFailed`.
    """
    request = _run_request(argv, settings)
    return ask(request, lambda value, _: _to_command_result(value, check), "run()", "arun()")


async def arun(
    argv: Sequence[str], *, check: bool = True, **settings: Unpack[TaskSettings]
) -> CommandResult:
    """Runs a command as a task, beside this program, and waits for its end.

    It needs no worker. With `check`, a command that fails raises `TaskFailed`.
    """
    return await aask(_run_request(argv, settings), lambda value, _: _to_command_result(value, check))


def failure(value: Any, payload: bytes | None) -> Exception:
    """The exception for a task that did not complete.

    An exception of a routine is of its own class, if this program has imported that, and has a
    `TaskError` as its cause.
    """
    exit_kind = (value.get("exit") or {}).get("kind")
    kinds: dict[str, type[_errors.TaskError]] = {
        "timeout": _errors.TaskTimedOut,
        "cancelled": _errors.TaskCancelled,
        "killed": _errors.TaskKilled,
    }
    kind = kinds.get(value["state"], _errors.TaskFailed)
    if exit_kind == "expired":
        kind = _errors.TaskExpired
    reason = value.get("message") or "it never started"
    stderr = value.get("stderr")
    error = kind(
        f"task {value['tid']} {_STATES.get(value['state'], value['state'])}: {reason}",
        tid=value["tid"],
        state=value["state"],
        attempts=value["attempts"],
        exit_code=value.get("exit_code"),
        stderr=stderr,
    )
    if not payload or kind is not _errors.TaskFailed:
        return error
    reported = decode(payload)
    description = _remote.find_description(reported)
    if description is None:
        raised: Exception = _errors.Failed(reported)
    else:
        raised = _remote.rebuild(description)
        error.__cause__ = raised.__cause__
    raised.__cause__ = error
    return raised


_STATES = {"failed": "has failed", "timeout": "has timed out", "cancelled": "was cancelled", "killed": "was killed"}


def _command(argv: Sequence[str], settings: TaskSettings) -> msgspec.Raw:
    if isinstance(argv, str):
        raise TypeError("give the command as a list of words: ['echo', 'hello']")
    spec = {
        "target": {"command": [os.fspath(word) for word in argv]},
        "cwd": os.getcwd(),
        **TaskOptions(settings).spec_fields(),
    }
    return msgspec.Raw(encode(spec))


def _run_request(argv: Sequence[str], settings: TaskSettings) -> Any:
    spec, parent = _command(argv, settings), parent_task()
    return lambda broker: {"run": {"broker": broker, "task": spec, "parent": parent}}


def _command_task(value: Any, _payload: bytes | None) -> Task[CommandResult]:
    tid, existing = value[0]
    return Task(tid, CommandResult, existing)


def _to_command_result(value: Any, check: bool) -> CommandResult:
    code = value["exit_code"]
    if check and value["state"] != "completed" or code is None:
        raise failure(value, None)
    return CommandResult(value["tid"], code, value.get("stdout") or "", value.get("stderr") or "")


def _to_status(value: Any, _payload: bytes | None) -> TaskStatus:
    return msgspec.convert(value, TaskStatus)


def _to_text(_value: Any, payload: bytes | None) -> str:
    return (payload or b"").decode(errors="replace")


def _to_event(item: Any, payload: bytes | None) -> Event:
    record = item.get("event")
    if record is None:
        return Event(item["stream"], payload or b"")
    return Event(record["event"], b"", record)


def _milliseconds(span: Span) -> int:
    if isinstance(span, str):
        raise TypeError("give the time to wait in seconds or as a timedelta")
    return max(0, round(span_seconds(span) * 1000))
