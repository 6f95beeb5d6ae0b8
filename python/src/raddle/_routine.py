"""Routines: functions with a name, a signature and options."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from ._options import RoutineSettings, TaskOptions, TaskSettings
from ._signature import Signature
from ._verbs import P, RoutineVerbs, StreamVerbs

T = TypeVar("T")
#: How a routine runs: on the event loop, in the main thread, on a thread, or with items.
Kind = Literal["async", "plain", "threads", "stream"]


class AnyRoutine:
    """The common part of routines of all kinds."""

    def __init__(self, function: Callable[..., Any], settings: RoutineSettings) -> None:
        self.function = function
        self.name = settings.get("name") or default_name(function)
        self.threads = settings.get("threads")
        self.signature = Signature(self.name, function)
        self.kind = kind_of(function, self.threads)
        task: dict[str, Any] = {
            name: value for name, value in settings.items() if name not in ("name", "threads")
        }
        settings_of_tasks: TaskSettings = task  # type: ignore[assignment]
        self.options = TaskOptions(settings_of_tasks)
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<raddle routine {self.name}>"


class Routine(AnyRoutine, RoutineVerbs[P, T], Generic[P, T]):
    """A routine that returns one value."""


class StreamRoutine(AnyRoutine, StreamVerbs[P, T], Generic[P, T]):
    """A routine that yields items."""


def make_routine(function: Callable[..., Any], settings: RoutineSettings) -> AnyRoutine:
    """The routine of a function."""
    if kind_of(function, settings.get("threads")) == "stream":
        return StreamRoutine(function, settings)
    return Routine(function, settings)


def kind_of(function: Callable[..., Any], threads: int | None) -> Kind:
    """How a function runs."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        return "stream"
    if inspect.iscoroutinefunction(function):
        if threads is not None:
            raise TypeError("an async routine runs on the event loop: leave out threads=")
        return "async"
    return "plain" if threads is None else "threads"


def default_name(function: Callable[..., Any]) -> str:
    """`module:qualname`, the name that a worker finds the function by."""
    module = function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        module = spec.name if spec is not None else os.path.splitext(os.path.basename(file))[0] if file else module
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{module}:{name}".replace("<locals>.", "").replace("<lambda>", "lambda")
