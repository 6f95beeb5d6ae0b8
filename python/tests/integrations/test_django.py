"""The backend for Django's tasks, with Django itself."""

from __future__ import annotations

import subprocess

import pytest
from projects import PACKAGE, Project, interpreter, new_environment, project

__all__ = ["project"]

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["mail"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
TASKS = {"default": {
    "BACKEND": "raddle.django.RaddleBackend",
    "QUEUES": ["default", "slow"],
    "OPTIONS": {"timeout": "1m"},
}}
"""
TASKS = """
from django.tasks import task


@task
def send(to: str, *, copies: int = 1) -> str:
    return f"{to} x {copies}"


@task(queue_name="slow", priority=50)
async def wait(seconds: float) -> float:
    return seconds


@task(takes_context=True)
def describe(context) -> list:
    return [context.task_result.id, context.attempt]


class Gone(Exception):
    pass


@task
def fail() -> None:
    raise Gone("away")
"""
PROGRAM = """
import asyncio, datetime, time
import django
django.setup()
from django.tasks import default_task_backend
from django.tasks.exceptions import TaskResultDoesNotExist
from django.utils import timezone
from mail.tasks import describe, fail, send, wait


def finish(result):
    end = time.monotonic() + 60
    while not result.is_finished:
        assert time.monotonic() < end, result
        time.sleep(0.05)
        result.refresh()
    return result


from raddle.django import priority_of
assert [priority_of(one) for one in (-100, -1, 0, 50, 100)] == [0, 4, 5, 7, 9]
assert finish(send.enqueue("ada", copies=2)).return_value == "ada x 2"
waited = finish(asyncio.run(wait.aenqueue(0.1)))
assert (waited.return_value, waited.attempts, waited.task.queue_name) == (0.1, 1, "slow")
described = finish(describe.enqueue())
assert described.return_value == [described.id, 1]
failed = finish(fail.enqueue())
assert failed.status == "FAILED" and failed.errors[0].exception_class.__name__ == "Gone"
assert "in fail" in failed.errors[0].traceback
later = send.using(run_after=timezone.now() + datetime.timedelta(hours=1)).enqueue("bob")
assert default_task_backend.get_result(later.id).status == "READY"
try:
    default_task_backend.get_result("1234567890123456789")
except TaskResultDoesNotExist:
    print("all is well")
"""


def test_tasks_of_django_run_in_a_worker(project: Project) -> None:
    python = interpreter("3.13") or interpreter("3.12")
    if python is None:
        pytest.skip("Django 6 needs Python 3.12")
    new_environment(python, project.directory / "venv", "django>=6,<7", "msgspec")
    site = project.directory / "site"
    (site / "mail").mkdir(parents=True)
    (site / "settings.py").write_text(SETTINGS)
    (site / "mail/__init__.py").touch()
    (site / "mail/tasks.py").write_text(TASKS)
    (site / "program.py").write_text(PROGRAM)
    own_python = str(project.directory / "venv/bin/python")
    project.env.update(
        DJANGO_SETTINGS_MODULE="settings",
        PYTHONPATH=f"{PACKAGE}:{site}",
        RADDLE_PYTHON=own_python,
        RADDLE_BINARY=project.program,
    )
    project.start_worker("raddle.django.worker:app", "--hosts", "1", "--queues", "default,slow")
    done = subprocess.run(
        [own_python, str(site / "program.py")],
        cwd=project.directory,
        env=project.env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    assert done.stdout == "all is well\n", done.stdout + project.worker_logs()

