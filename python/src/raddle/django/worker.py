"""The app that runs tasks of Django: `raddle worker start --python raddle.django.worker:app`."""

from __future__ import annotations

from typing import Any

import django
from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

import raddle

from . import ASYNC, PLAIN, RaddleBackend

django.setup()

from django.tasks.base import TaskContext, TaskResult, TaskResultStatus  # noqa: E402
from django.tasks.signals import task_finished, task_started  # noqa: E402
from django.utils import timezone  # noqa: E402

app = raddle.App("django")


@app.routine(name=PLAIN)
def run(path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Runs the function of a task."""
    task, result = begin(path, args, kwargs)
    close_old_connections()
    try:
        value = task.func(*context_of(task, result), *args, **kwargs)
        return finish(result, normalize_json(value))
    except BaseException:
        finish(result, None, TaskResultStatus.FAILED)
        raise
    finally:
        close_old_connections()


@app.routine(name=ASYNC)
async def arun(path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Runs the coroutine of a task."""
    task, result = begin(path, args, kwargs)
    try:
        value = await task.func(*context_of(task, result), *args, **kwargs)
        return finish(result, normalize_json(value))
    except BaseException:
        finish(result, None, TaskResultStatus.FAILED)
        raise
    finally:
        await sync_to_async(close_old_connections)()


def begin(path: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, TaskResult]:
    """The task of a path, and the result that its attempt is about."""
    task, attempt = import_string(path), raddle.current()
    now = timezone.now()
    result = TaskResult(
        task=task,
        id=attempt.tid,
        status=TaskResultStatus.RUNNING,
        enqueued_at=None,
        started_at=now,
        finished_at=None,
        last_attempted_at=now,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=[""] * attempt.attempt,
    )
    task_started.send(RaddleBackend, task_result=result)
    return task, result


def context_of(task: Any, result: TaskResult) -> tuple[Any, ...]:
    """The context, if the task takes it."""
    return (TaskContext(task_result=result),) if task.takes_context else ()


def finish(result: TaskResult, value: Any, status: Any = TaskResultStatus.SUCCESSFUL) -> Any:
    """Tells Django that the attempt is over."""
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "_return_value", value)
    task_finished.send(RaddleBackend, task_result=result)
    return value
