"""Handlers: named plug-ins that provide capabilities, and take any task that asks for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec


class Job(msgspec.Struct, kw_only=True):
    """A task as a handler sees it."""

    tid: str
    attempt: int
    spec: dict[str, Any]
    traceparent: str | None = None

    @property
    def args(self) -> list[Any]:
        """The positional arguments."""
        return self.spec.get("args") or []

    @property
    def kwargs(self) -> dict[str, Any]:
        """The named arguments."""
        return self.spec.get("kwargs") or {}

    @property
    def requires(self) -> set[str]:
        """The capabilities that the task asks for."""
        return set(self.spec.get("requires") or [])


class Handler(ABC):
    """A plug-in. A worker with its capabilities offers it."""

    #: The name that tasks ask for.
    name: ClassVar[str]
    #: The capabilities that it has.
    provides: ClassVar[Iterable[str]] = ()

    def accepts(self, job: Job) -> bool:
        """Whether it takes a task. It must be quick and have no effects."""
        return True

    @abstractmethod
    def handle(self, job: Job) -> Any:
        """Runs the task, as a function or a coroutine, and returns its value."""
