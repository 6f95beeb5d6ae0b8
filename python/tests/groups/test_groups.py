"""Process groups in Python: workers with state, events, triggers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from projects import Project, project, wait_until

__all__ = ["project"]

HERE = Path(__file__).parent


def lines(project: Project, name: str) -> list[str]:
    """The lines of a file that workers have written."""
    path = project.directory / name
    return path.read_text().splitlines() if path.exists() else []


def is_up(project: Project, processes: int) -> bool:
    """Whether the manager has said that all processes are up."""
    said = f"{processes} process"
    return any(said in path.read_text() for path in project.directory.glob("process-*.log"))


def test_events_run_in_a_process_that_keeps_its_state(project: Project) -> None:
    project.env["PYTHONPATH"] += f":{HERE}"
    manager = project.start("up", "--python", "mail:manager")
    wait_until(lambda: is_up(project, 2), "two processes are up")
    for order in [1, 2, -3, 4]:
        project.raddle("queue", "write", "orders", json.dumps({"order_id": order}))
    wait_until(lambda: len(lines(project, "stock")) == 3, "the events of completed attempts arrive")
    assert sorted(lines(project, "stock")) == ["1 1", "2 2", "4 4"], "those of a failed one do not"
    manager.terminate()
    assert manager.wait(60) == 0
    assert lines(project, "lifecycle") == ["startup", "shutdown after 4"]


def test_a_manager_runs_as_a_program(project: Project) -> None:
    project.env["PYTHONPATH"] += f":{HERE}"
    (project.directory / "mail.py").write_text((HERE / "mail.py").read_text())
    project.env["RADDLE_BINARY"] = project.program
    with (project.directory / "process-x.log").open("w") as log:
        program = subprocess.Popen(
            [sys.executable, "mail.py"], cwd=project.directory, env=project.env, stdout=log, stderr=log
        )
    wait_until(lambda: is_up(project, 2), "two processes are up")
    program.terminate()
    assert program.wait(60) == 0


def test_routines_are_submitted_by_the_clock(project: Project) -> None:
    project.env["PYTHONPATH"] += f":{HERE}"
    manager = project.start("up", "--python", "clock:app")
    wait_until(lambda: len(lines(project, "ticks")) >= 2, "the clock submits")
    schedules = project.raddle("schedule", "list")
    assert "clock-tick" in schedules and "0 7 * * 1-5" in schedules
    tid = project.submit("clock:double", 21, options=("--queue", "sums"))
    assert project.finish(tid)["report"]["value"] == 42, "it takes tasks of the queues of its routines"
    manager.terminate()
    assert manager.wait(60) == 0


def test_mistakes_are_named(project: Project) -> None:
    project.env["PYTHONPATH"] += f":{HERE}"
    for name, reason in [("mail:Mail", "neither a raddle.App"), ("nowhere:app", "no module 'nowhere'")]:
        assert reason in project.raddle("up", "--python", name, code=2)
    said = project.raddle("worker", "start", "--python", "mail:manager", code=2)
    assert "raddle up --python mail:manager" in said
