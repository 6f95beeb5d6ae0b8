"""A backend for the tasks of Django 6: `TASKS = {"default": {"BACKEND": "raddle.django.RaddleBackend"}}`.

The worker is `raddle worker start --python raddle.django.worker:app --queues default`, with
`DJANGO_SETTINGS_MODULE` in its environment.
"""

from __future__ import annotations

from typing import Any

from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task, TaskError, TaskResult, TaskResultStatus
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

import raddle
from raddle._codec import encode
from raddle._requests import aask, ask, submit_request, trace_fields

#: The routines of the worker, for functions and for coroutines.
PLAIN, ASYNC = "raddle.django:run", "raddle.django:arun"
_STATES = {
    "created": TaskResultStatus.READY,
    "spawning": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "completed": TaskResultStatus.SUCCESSFUL,
}


class RaddleBackend(BaseTaskBackend):  # type: ignore[misc]
    """Stores tasks with Raddle. A task is durable when `enqueue` returns."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Stores a task."""
        request = submit_request([self._spec(task, args, kwargs)])
        (tid, _) = ask(request, _first, "enqueue()", "aenqueue()")
        return self._enqueued(task, tid, args, kwargs)

    async def aenqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Stores a task."""
        (tid, _) = await aask(submit_request([self._spec(task, args, kwargs)]), _first)
        return self._enqueued(task, tid, args, kwargs)

    def get_result(self, result_id: str) -> TaskResult:
        """Reads a task, and its value if it is finished."""
        stored = raddle.task(result_id)
        try:
            status = stored.status()
        except (raddle.NotFound, raddle.Invalid):
            raise TaskResultDoesNotExist(result_id) from None
        if status.spec["target"].get("routine") not in (PLAIN, ASYNC):
            raise TaskResultDoesNotExist(result_id)
        path, args, kwargs = status.spec["args"]
        errors: list[TaskError] = []
        value = None
        if status.is_finished:
            try:
                value = stored.result()
            except Exception as error:
                errors.append(task_error(error))
        result = TaskResult(
            task=import_string(path),
            id=status.tid,
            status=_STATES.get(status.state, TaskResultStatus.FAILED),
            enqueued_at=status.created_at,
            started_at=status.claimed_at,
            finished_at=status.finished_at,
            last_attempted_at=status.claimed_at,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=errors,
            worker_ids=[status.worker or ""] * status.attempt,
        )
        object.__setattr__(result, "_return_value", value)
        return result

    def _spec(self, task: Task, args: Any, kwargs: Any) -> Any:
        import inspect

        import msgspec

        self.validate_task(task)
        spec: dict[str, Any] = {
            "name": task.module_path,
            "target": {"routine": ASYNC if inspect.iscoroutinefunction(task.func) else PLAIN},
            "args": [task.module_path, normalize_json(list(args)), normalize_json(dict(kwargs))],
            "queue": task.queue_name,
            "priority": priority_of(task.priority),
            **trace_fields(),
            **raddle.TaskOptions(self.options).spec_fields(),
        }
        if task.run_after is not None:
            spec["run_at"] = task.run_after.isoformat()
        return msgspec.Raw(encode(spec))

    def _enqueued(self, task: Task, tid: str, args: Any, kwargs: Any) -> TaskResult:
        from django.utils import timezone

        result = TaskResult(
            task=task,
            id=tid,
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result


def priority_of(priority: int) -> int:
    """Django's priorities go from -100 to 100, Raddle's from 0 to 9."""
    return min(9, 5 + priority // 20)


def task_error(error: Exception) -> TaskError:
    """The error of a task that has failed."""
    kind = type(error)
    path = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(error, raddle.RemoteError) and error.type_name:
        path = error.type_name.replace(":", ".")
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, raddle.RemoteTraceback):
        cause = cause.__cause__
    text = str(cause.args[0]) if cause is not None else str(error)
    return TaskError(exception_class_path=path, traceback=text)


def _first(value: Any, _payload: bytes | None) -> Any:
    return value[0]
