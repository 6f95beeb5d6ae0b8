"""Options of routines and tasks, as the broker stores them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, Union

#: A time span: seconds, or text such as ``"5m"``.
Span = Union[int, float, str, timedelta]
Run = Literal["hosted", "fresh", "sandbox", "docker"]


@dataclass(frozen=True)
class Retry:
    """How often to try, and how long to wait in between."""

    attempts: int = 3
    backoff: Literal["none", "fixed", "linear", "exponential"] | None = None
    base: Span | None = None
    max: Span | None = None
    jitter: float | None = None
    #: Only these exceptions are tried again.
    on: tuple[type[BaseException], ...] | None = None
    #: These exceptions are never tried again.
    give_up_on: tuple[type[BaseException], ...] = ()

    def is_permanent(self, error: BaseException) -> bool:
        """Whether no other attempt follows this error."""
        if isinstance(error, self.give_up_on):
            return True
        return self.on is not None and not isinstance(error, self.on)

    def to_json(self) -> dict[str, Any]:
        """The policy as in the spec of a task."""
        fields = {
            "attempts": self.attempts,
            "backoff": self.backoff,
            "base": None if self.base is None else span_text(self.base),
            "max": None if self.max is None else span_text(self.max),
            "jitter": self.jitter,
        }
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class Limits:
    """The resources that one attempt in a process of its own may use."""

    memory_mb: int | None = None
    cpu_percent: int | None = None
    max_fds: int | None = None
    max_procs: int | None = None

    def to_json(self) -> dict[str, int]:
        """The limits as in the spec of a task."""
        return {name: value for name, value in vars(self).items() if value is not None}


class TaskSettings(TypedDict, total=False):
    """Options of one task: the keyword arguments of ``with_``."""

    label: str
    queue: str
    priority: int
    requires: Iterable[str]
    kind: str
    batch: str
    delay: Span
    run_at: datetime | str
    lifetime: Span
    timeout: Span
    retry: Retry | int
    limits: Limits
    run: Run
    unique_key: str
    result_ttl: Span
    on_stop: Literal["requeue", "keep", "clear"]
    on_error: Literal["requeue", "keep", "clear"]
    env: Mapping[str, str]
    cwd: str
    metadata: Mapping[str, Any]


class RoutineSettings(TaskSettings, total=False):
    """Options of a routine: the keyword arguments of the decorator."""

    name: str
    threads: int


@dataclass(frozen=True)
class TaskOptions:
    """Options of a task, each as given or absent."""

    settings: TaskSettings = field(default_factory=TaskSettings)

    def updated(self, settings: TaskSettings) -> TaskOptions:
        """These options, with others over them."""
        return replace(self, settings={**self.settings, **settings})

    @property
    def retry(self) -> Retry | None:
        """The retry policy."""
        retry = self.settings.get("retry")
        return Retry(retry) if isinstance(retry, int) else retry

    def spec_fields(self) -> dict[str, Any]:
        """The fields of the spec of a task that these options set."""
        given: dict[str, Any] = dict(self.settings)
        fields: dict[str, Any] = {}
        for name, value in given.items():
            if value is None:
                continue
            if name in ("delay", "lifetime", "timeout", "result_ttl"):
                fields[name] = span_text(value)
            elif name == "label":
                fields["name"] = value
            elif name == "retry":
                fields[name] = (Retry(value) if isinstance(value, int) else value).to_json()
            elif name == "limits":
                fields[name] = value.to_json()
            elif name == "requires":
                fields[name] = sorted(value)
            elif name == "run":
                if value != "hosted":
                    fields["isolation"] = "process" if value == "fresh" else value
            elif name == "run_at":
                fields[name] = time_text(value)
            elif name in ("env", "metadata"):
                fields[name] = dict(value)
            else:
                fields[name] = value
        return fields


def span_text(span: Span) -> str:
    """A time span in the notation of the spec."""
    if isinstance(span, str):
        return span
    return f"{span_seconds(span):.6f}".rstrip("0").rstrip(".") + "s"


def span_seconds(span: int | float | timedelta) -> float:
    """A time span in seconds."""
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


def time_text(time: datetime | str) -> str:
    """A point in time in the notation of the spec. A naive time is local."""
    return time if isinstance(time, str) else time.astimezone().isoformat()
