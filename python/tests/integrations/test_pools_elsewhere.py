"""Pools in other libraries: ASGI applications and executors."""

from __future__ import annotations

import subprocess
import sys

from projects import DEADLINE, PACKAGE, Project, new_environment, project

__all__ = ["project"]
ROUTINES = """
import raddle

app = raddle.App("sums")


@app.routine
def add(a: int, b: int) -> int:
    return a + b
"""
EXECUTOR = """
import asyncio, raddle
from raddle.executor import Executor
from sums import add, app


async def in_loop(executor):
    return await asyncio.get_running_loop().run_in_executor(executor, add, 2, 3)


with raddle.WorkerPool(size=1, app=app) as pool, Executor(pool) as executor:
    print(executor.submit(add, 1, 2).result(), list(executor.map(add, [1, 2], [3, 4])))
    print(asyncio.run(in_loop(executor)))
    try:
        executor.submit(print)
    except TypeError as error:
        print(error)
"""
FASTAPI = """
import raddle
from fastapi import FastAPI
from fastapi.testclient import TestClient
from raddle.asgi import PoolMiddleware
from sums import add

web = FastAPI()
web.add_middleware(PoolMiddleware, pool=raddle.WorkerPool(size=1, app="sums:app"))


@web.get("/{a}/{b}")
async def sum(a: int, b: int) -> int:
    return await add(a, b)


with TestClient(web) as client:
    print(client.get("/40/2").json())
"""


def run(project: Project, python: str, code: str) -> str:
    """Runs a program beside the routines, and returns its output."""
    (project.directory / "sums.py").write_text(ROUTINES)
    (project.directory / "program.py").write_text(code)
    done = subprocess.run(
        [python, "program.py"],
        cwd=project.directory,
        env={**project.env, "PYTHONPATH": str(PACKAGE), "RADDLE_BINARY": project.program},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=DEADLINE,
    )
    return done.stdout


def test_an_executor_calls_routines(project: Project) -> None:
    said = run(project, sys.executable, EXECUTOR).splitlines()
    assert said[:2] == ["3 [4, 6]", "5"], said
    assert "decorate it with @app.routine" in said[2]


def test_requests_of_fastapi_call_routines(project: Project) -> None:
    new_environment(sys.executable, project.directory / "venv", "fastapi", "httpx", "msgspec")
    said = run(project, str(project.directory / "venv/bin/python"), FASTAPI)
    assert said.endswith("\n42\n") or said == "42\n", said
