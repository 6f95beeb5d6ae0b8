"""`App`: a namespace for routines, their defaults, and what happens when a host starts."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from ._handler import Handler
from ._options import RoutineSettings, Span, TaskSettings
from ._routine import AnyRoutine, Routine, StreamRoutine, make_routine
from ._verbs import P
from .groups import Trigger

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R", bound=AnyRoutine)
F = TypeVar("F", bound=Callable[[], Any])
H = TypeVar("H", bound="type[Handler]")
#: A function that runs once in each host.
Hook = Callable[[], Any]


class RoutineDecorator(Protocol):
    """The decorator that `routine(...)` with options makes."""

    @overload
    def __call__(self, function: R, /) -> R: ...
    @overload
    def __call__(self, function: Callable[P, AsyncIterator[T]], /) -> StreamRoutine[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Routine[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, Iterator[T]], /) -> StreamRoutine[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, T], /) -> Routine[P, T]: ...
    def __call__(self, function: Any, /) -> Any: ...


class App:
    """A set of routines. A host runs the routines of one app."""

    def __init__(self, name: str = "app", **defaults: Unpack[TaskSettings]) -> None:
        self.name = name
        self.defaults = defaults
        self.routines: dict[str, AnyRoutine] = {}
        self.handlers: dict[str, Handler] = {}
        #: When which routine is submitted by the clock.
        self.triggers: list[tuple[str, Trigger]] = []
        self.startup_hooks: list[Hook] = []
        self.shutdown_hooks: list[Hook] = []
        _APPS.add(self)

    @overload
    def routine(self, function: Callable[P, AsyncIterator[T]], /) -> StreamRoutine[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def routine(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Routine[P, T]: ...
    @overload
    def routine(self, function: Callable[P, Iterator[T]], /) -> StreamRoutine[P, T]: ...  # type: ignore[overload-overlap]
    @overload
    def routine(self, function: Callable[P, T], /) -> Routine[P, T]: ...
    @overload
    def routine(self, /, **settings: Unpack[RoutineSettings]) -> RoutineDecorator: ...
    def routine(self, function: Any = None, /, **settings: Any) -> Any:
        """Makes a function a routine of this app."""

        def decorate(function: Any) -> Any:
            if isinstance(function, AnyRoutine):
                raise TypeError(f"'{function.name}' is a routine already")
            merged: RoutineSettings = {**self.defaults, **settings}  # type: ignore[typeddict-item]
            routine = make_routine(function, merged)
            return self.add_routine(routine)

        return decorate if function is None else decorate(function)

    def add_routine(self, routine: R) -> R:
        """Takes in a routine. Two of one name are an error."""
        known = self.routines.get(routine.name)
        if known is not None and known.function is not routine.function:
            raise ValueError(f"two routines have the name '{routine.name}': give one of them a name=")
        self.routines[routine.name] = routine
        return routine

    def cron(
        self,
        expression: str,
        *,
        tz: str | None = None,
        missed: Literal["skip", "one", "all"] | None = None,
        jitter: Span | None = None,
        lifetime: Span | None = None,
    ) -> RoutineDecorator:
        """Makes a function a routine that is submitted by the clock: `raddle up` keeps the time."""
        return self._triggered(
            Trigger(cron=expression, timezone=tz, missed=missed, jitter=jitter, lifetime=lifetime)
        )

    def every(
        self, interval: Span, *, jitter: Span | None = None, lifetime: Span | None = None
    ) -> RoutineDecorator:
        """Makes a function a routine that is submitted at an interval."""
        return self._triggered(Trigger(every=interval, jitter=jitter, lifetime=lifetime))

    def _triggered(self, trigger: Trigger) -> RoutineDecorator:
        def decorate(function: Any) -> Any:
            routine = function if isinstance(function, AnyRoutine) else self.routine(function)
            self.triggers.append((routine.name, trigger))
            return routine

        return decorate

    def on_startup(self, function: F) -> F:
        """Runs a function, async or not, once in each host before its first attempt."""
        self.startup_hooks.append(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Runs a function, async or not, once in each host after its last attempt."""
        self.shutdown_hooks.append(function)
        return function

    def handler(self, kind: H) -> H:
        """Makes a class a handler of this app."""
        made = kind()
        self.handlers[made.name] = made
        return kind

    def check(self) -> list[str]:
        """The problems that would show later: types that cannot travel, annotations that cannot be read."""
        problems = []
        for routine in self.routines.values():
            try:
                routine.signature.check()
            except (TypeError, ValueError) as error:
                problems.append(f"{routine.name}: {error}")
        return problems


def all_apps() -> list[App]:
    """The apps of this process."""
    return list(_APPS)


_APPS: weakref.WeakSet[App] = weakref.WeakSet()
#: The app of routines that name none.
default_app = App("default")
routine = default_app.routine


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function must be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)
    )
