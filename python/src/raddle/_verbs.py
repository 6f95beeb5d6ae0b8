"""Verbs of a routine: call it, submit it, schedule it, run it here."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

import msgspec

from ._calls import Calls, StreamCalls
from ._codec import encode
from ._context import current
from ._options import Span, TaskOptions, TaskSettings, span_text
from ._requests import aask, ask, groups, no_result, submit_request, trace_fields
from ._task import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import ParamSpec, Self, Unpack

    from ._pool import WorkerPool
    from ._signature import Signature

    P = ParamSpec("P")
else:
    from typing import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")
R = TypeVar("R")


class SubmitVerbs(Generic[P, R]):
    """Verbs of a routine in the queue, whose tasks have a result of type `R`."""

    function: Callable[..., Any]
    name: str
    options: TaskOptions
    signature: Signature

    def with_(self, **settings: Unpack[TaskSettings]) -> Self:
        """The same routine with other options for its tasks."""
        changed = copy.copy(self)
        changed.options = self.options.updated(settings)
        return changed

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Task[R]:
        """Stores a task. It is durable when this returns."""
        request = submit_request([self._raw(args, kwargs)])
        return ask(request, self._to_task, f"{self.name}.submit()", f"{self.name}.asubmit()")

    async def asubmit(self, *args: P.args, **kwargs: P.kwargs) -> Task[R]:
        """Stores a task. It is durable when this returns."""
        return await aask(submit_request([self._raw(args, kwargs)]), self._to_task)

    def submit_many(self, arguments: Iterable[Sequence[Any]]) -> list[Task[R]]:
        """Stores a task for each tuple of arguments, a thousand in one transaction."""
        tasks: list[Task[R]] = []
        for group in groups([self._raw(args, {}) for args in arguments]):
            tasks += ask(submit_request(group), self._to_tasks, "submit_many()", "asubmit_many()")
        return tasks

    async def asubmit_many(self, arguments: Iterable[Sequence[Any]]) -> list[Task[R]]:
        """Stores a task for each tuple of arguments, a thousand in one transaction."""
        tasks: list[Task[R]] = []
        for group in groups([self._raw(args, {}) for args in arguments]):
            tasks += await aask(submit_request(group), self._to_tasks)
        return tasks

    def chain(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Inside a routine: submits a task if that attempt succeeds, in the same transaction."""
        current().chain(self.spec(args, kwargs))

    def schedule(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Span | None = None,
        tz: str | None = None,
        missed: Literal["skip", "one", "all"] | None = None,
        jitter: Span | None = None,
        lifetime: Span | None = None,
        args: Sequence[Any] = (),
    ) -> None:
        """Stores a schedule that submits tasks by the clock. A schedule of this name is replaced."""
        when = _when(name, cron, every, tz, missed, jitter, lifetime)
        request = self._schedule(when, args)
        ask(request, no_result, f"{self.name}.schedule()", f"{self.name}.aschedule()")

    async def aschedule(
        self,
        name: str,
        *,
        cron: str | None = None,
        every: Span | None = None,
        tz: str | None = None,
        missed: Literal["skip", "one", "all"] | None = None,
        jitter: Span | None = None,
        lifetime: Span | None = None,
        args: Sequence[Any] = (),
    ) -> None:
        """Stores a schedule that submits tasks by the clock. A schedule of this name is replaced."""
        when = _when(name, cron, every, tz, missed, jitter, lifetime)
        await aask(self._schedule(when, args), no_result)

    def spec(self, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """The spec of a task of this routine."""
        positional, named = self.signature.bind(args, kwargs or {})
        spec: dict[str, Any] = {
            "target": {"routine": self.name},
            **trace_fields(),
            **self.options.spec_fields(),
        }
        if positional:
            spec["args"] = positional
        if named:
            spec["kwargs"] = named
        return spec

    def _raw(self, args: Sequence[Any], kwargs: dict[str, Any]) -> msgspec.Raw:
        return msgspec.Raw(encode(self.spec(args, kwargs)))

    def _schedule(self, when: dict[str, Any], args: Sequence[Any]) -> Any:
        schedule = msgspec.Raw(encode({**when, "task": self.spec(args)}))
        return lambda broker: {"schedule": {"broker": broker, "schedule": schedule}}

    def _result_kind(self) -> Any:
        return self.signature.returns

    def _to_tasks(self, value: Any, _payload: bytes | None) -> list[Task[R]]:
        kind = self._result_kind()
        return [Task(tid, kind, existing) for tid, existing in value]

    def _to_task(self, value: Any, payload: bytes | None) -> Task[R]:
        return self._to_tasks(value, payload)[0]


class RoutineVerbs(SubmitVerbs[P, T], Generic[P, T]):
    """Verbs of a routine that returns one value."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the routine in the pool of this code."""
        return await self._calls()(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the routine in the pool of this code, and waits."""
        return self._calls().call(*args, **kwargs)

    def on(self, pool: WorkerPool) -> Calls[P, T]:
        """Calls of the routine in this pool."""
        return self._calls().on(pool)

    def timeout(self, timeout: Span) -> Calls[P, T]:
        """Calls of the routine that may take this long."""
        return self._calls().timeout(timeout)

    def key(self, key: object) -> Calls[P, T]:
        """Calls of the routine that a sticky balancer sends to one worker."""
        return self._calls().key(key)

    def map(
        self, arguments: Iterable[Sequence[Any]], *, window: int = 100, ordered: bool = True
    ) -> AsyncIterator[T]:
        """A call for each tuple of arguments, up to `window` at a time."""
        return self._calls().map(arguments, window=window, ordered=ordered)

    def imap(self, arguments: Iterable[Sequence[Any]], *, window: int = 100) -> Iterator[T]:
        """A call for each tuple of arguments, up to `window` at a time, in order."""
        return self._calls().imap(arguments, window=window)

    def _calls(self) -> Calls[P, T]:
        return Calls(self)

    async def here(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the routine in this process."""
        value = self.function(*args, **kwargs)
        return cast(T, await value if inspect.isawaitable(value) else value)


class StreamVerbs(SubmitVerbs[P, list[T]], Generic[P, T]):
    """Verbs of a routine that yields items. The result of its task is the list of them."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        """Calls the routine in the pool of this code. A loop that ends early cancels it."""
        return self._calls()(*args, **kwargs)

    def iter(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        """Calls the routine in the pool of this code. A loop that ends early cancels it."""
        return self._calls().iter(*args, **kwargs)

    def on(self, pool: WorkerPool) -> StreamCalls[P, T]:
        """Calls of the routine in this pool."""
        return self._calls().on(pool)

    def timeout(self, timeout: Span) -> StreamCalls[P, T]:
        """Calls of the routine that may take this long."""
        return self._calls().timeout(timeout)

    def key(self, key: object) -> StreamCalls[P, T]:
        """Calls of the routine that a sticky balancer sends to one worker."""
        return self._calls().key(key)

    def _calls(self) -> StreamCalls[P, T]:
        return StreamCalls(self)

    def _result_kind(self) -> Any:
        return list[self.signature.returns]  # type: ignore[name-defined]


def unschedule(name: str) -> None:
    """Removes a schedule. Tasks that it has submitted stay."""
    ask(_unschedule(name), no_result, "unschedule()", "aunschedule()")


async def aunschedule(name: str) -> None:
    """Removes a schedule. Tasks that it has submitted stay."""
    await aask(_unschedule(name), no_result)


def _unschedule(name: str) -> Any:
    return lambda broker: {"unschedule": {"broker": broker, "name": name}}


def _when(
    name: str,
    cron: str | None,
    every: Span | None,
    tz: str | None,
    missed: str | None,
    jitter: Span | None,
    lifetime: Span | None,
) -> dict[str, Any]:
    fields = {
        "name": name,
        "cron": cron,
        "every": None if every is None else span_text(every),
        "timezone": tz,
        "missed": missed,
        "jitter": None if jitter is None else span_text(jitter),
        "lifetime": None if lifetime is None else span_text(lifetime),
    }
    return {key: value for key, value in fields.items() if value is not None}
