"""Routines in a host, as tasks on SQLite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from projects import DEADLINE, Project, project, shop, wait_until

__all__ = ["project", "shop"]

ORDER: dict[str, Any] = {
    "id": 7,
    "at": "2026-11-19T12:00:00Z",
    "key": "12345678-1234-5678-1234-567812345678",
    "price": "12.50",
    "colour": "red",
    "size": [3, 4],
    "data": "AAEC",
    "address": {"city": "Bonn"},
}


def test_runs_async_and_plain_routines_in_one_warm_process(shop: Project) -> None:
    assert shop.value("shop:add", 40) == 42
    assert shop.value("shop:add", 40, 1) == 41
    first, second = shop.value("shop:host_process"), shop.value("shop:host_process")
    assert first == second
    assert len(set(first)) == 1, "startup functions run once, in the process of the routines"


def test_builds_the_types_of_annotations(shop: Project) -> None:
    tid = shop.submit_spec(target={"routine": "shop:tell"}, args=[ORDER], kwargs={"loud": True})
    value = shop.finish(tid)["report"]["value"]
    assert value == {"order": ORDER, "type": "Order", "price": "12.50", "loud": True}
    assert shop.value("shop:greet", {"name": "ada"}) == {"name": "ADA"}


def test_names_the_argument_that_does_not_fit(shop: Project) -> None:
    for routine, values, reason in [
        ("shop:add", ["x"], "argument 'a' of shop:add: Expected `int`, got `str`"),
        ("shop:add", [1, 2, 3], "shop:add takes at most 2 arguments"),
        ("shop:add", [], "shop:add needs the argument 'a'"),
        ("shop:tell", [{**ORDER, "size": [3]}], "argument 'order' of shop:tell"),
        ("shop:greet", [{}], "argument 'customer' of shop:greet"),
    ]:
        record = shop.run(routine, *values, options=("--retry", "3"))
        assert record["state"] == "failed"
        assert reason in record["report"]["exit"]["message"], record
        assert record["attempt"] == 1, "the next attempt would fail as well"


def test_output_and_logs_go_to_the_log_of_the_task(shop: Project) -> None:
    tid = shop.submit("shop:chatter")
    shop.finish(tid)
    log = shop.logs(tid)
    for line in ["printed in pieces", "to stderr", 'logged 7 {"order":17}', 'said {"more":[1,2]}', "no newline"]:
        assert line in log


def test_progress_is_shown_while_a_task_runs(shop: Project) -> None:
    tid = shop.submit("shop:halfway")
    wait_until(lambda: "nearly" in shop.raddle("status"), "the progress is shown")
    shop.raddle("task", "stop", tid)
    shop.finish(tid)


def test_a_task_of_a_stream_has_the_list_of_its_items(shop: Project) -> None:
    assert shop.value("shop:count", 3) == [0, 1, 2]
    assert shop.value("shop:count_plain", 3) == [0, 1, 2]


def test_an_exception_fails_the_attempt_with_type_causes_and_traceback(shop: Project) -> None:
    tid = shop.submit("shop:lack", "loom")
    report = shop.finish(tid)["report"]
    assert report["exit"]["message"].startswith("shop:OutOfStock: loom: KeyError: 'missing'")
    described = report["value"]["python"]
    assert (described["type"], described["args"]) == ("shop:OutOfStock", ["loom"])
    log = shop.logs(tid)
    assert "OutOfStock: loom" in log and "in lack" in log
    assert "raddle/host" not in log, "frames of the host are of no use"


def test_permanent_errors_are_not_tried_again(shop: Project) -> None:
    for routine, values in [("shop:permanent", []), ("shop:divide", [1, 0])]:
        record = shop.run(routine, *values, options=("--retry", "3"))
        assert record["state"] == "failed"
        assert record["report"]["exit"]["permanent"] is True


def test_a_declared_failure_has_its_value(shop: Project) -> None:
    assert shop.run("shop:declared")["report"]["value"] == {"reason": "sold out"}


def test_faults_end_one_attempt_with_a_clear_error(shop: Project) -> None:
    before = shop.value("shop:host_process")
    for routine, reason in [
        ("shop:leave", "SystemExit: 3"),
        ("shop:leave_async", "SystemExit: 3"),
        ("shop:recurse", "RecursionError: maximum recursion depth exceeded"),
        ("shop:opaque", "a value of type object cannot be sent"),
        ("shop:huge", "return a path to it instead"),
    ]:
        record = shop.run(routine)
        assert record["state"] == "failed"
        assert reason in record["report"]["exit"]["message"], record
    assert shop.value("shop:host_process") == before, "the host has survived"


def test_a_crash_ends_its_task_and_no_other(project: Project) -> None:
    project.start_worker("shop:app", "--hosts", "1")
    neighbour = project.submit("shop:doze_async", 1)
    for routine, reason in [("shop:exit_at_once", "exited with code 4"), ("shop:segfault", "signal")]:
        record = project.run(routine)
        assert record["state"] == "failed", record
        assert reason in json.dumps(record["report"]["exit"]), record
    assert project.finish(neighbour)["state"] == "completed"
    assert "Segmentation fault" in project.logs(record["tid"]), "faulthandler shows where"


def test_a_plain_routine_is_interrupted_at_its_timeout(project: Project) -> None:
    project.start_worker("shop:app", "--hosts", "1")
    before = project.value("shop:host_process")
    record = project.run("shop:doze", 600, options=("--timeout", "300ms"))
    assert record["state"] == "timeout"
    assert (project.directory / "interrupted").read_text() == "timeout"
    assert project.run("shop:spin", options=("--timeout", "300ms"))["state"] == "timeout"
    assert project.run("shop:doze_async", 600, options=("--timeout", "300ms"))["state"] == "timeout"
    assert project.value("shop:host_process") == before, "the host has survived"


def test_a_routine_that_does_not_end_is_killed_and_its_neighbours_run_again(project: Project) -> None:
    project.start_worker("shop:app", "--hosts", "1")
    neighbour = project.submit("shop:doze_async", 5)
    wait_until(lambda: project.status(neighbour)["state"] == "running", "the neighbour runs")
    record = project.run("shop:spin", True, options=("--timeout", "300ms"))
    assert record["state"] == "timeout"
    assert project.finish(neighbour)["state"] == "completed"


def test_a_task_is_stopped_on_request(shop: Project) -> None:
    for routine in ["shop:doze", "shop:doze_async"]:
        tid = shop.submit(routine, 600)
        wait_until(lambda tid=tid: shop.status(tid)["state"] == "running", "it runs")  # type: ignore[misc]
        shop.raddle("task", "stop", tid)
        assert shop.finish(tid)["state"] == "cancelled"


def test_threads_run_beside_the_main_thread(shop: Project) -> None:
    tid = shop.submit("shop:on_thread")
    assert shop.finish(tid)["report"]["value"] == [False, tid, 1]


def test_the_context_has_task_attempt_and_deadline(shop: Project) -> None:
    tid = shop.submit("shop:whoami", options=("--timeout", "1m"))
    assert shop.finish(tid)["report"]["value"] == [tid, 1, "shop:whoami", True]


def test_a_chained_task_follows(shop: Project) -> None:
    tid = shop.submit("shop:begin")
    shop.finish(tid)

    def follower() -> Any:
        tasks = json.loads(shop.raddle("task", "list", "--json"))
        return [task for task in tasks if task.get("parent") == tid]

    wait_until(follower, "the chained task exists")
    assert shop.finish(follower()[0]["tid"])["report"]["value"] == 42


def test_shutdown_functions_run_when_the_worker_stops(project: Project) -> None:
    project.start_worker("shop:app", "--hosts", "1")
    pid = project.value("shop:host_process")[0]
    project.raddle("worker", "stop", "--all", "--timeout", "60")
    wait_until(lambda: (project.directory / "shut-down").exists(), "the shutdown function has run")
    assert (project.directory / "shut-down").read_text() == str(pid)


def test_killing_the_worker_leaves_no_process_and_loses_no_task(project: Project) -> None:
    worker = project.start("worker", "start", "--no-detach", "--python", "shop:app", "--hosts", "1")
    tid = project.submit("shop:doze_async", 2)
    wait_until(lambda: project.status(tid)["state"] == "running", "it runs")
    worker.kill()
    worker.wait()
    wait_until(lambda: not project.processes_left(), "host and runner are gone")
    project.start_worker("shop:app", "--hosts", "1")
    record = project.finish(tid)
    assert record["state"] == "completed", record


def test_an_app_that_cannot_be_loaded_is_named(project: Project) -> None:
    for app, reason in [
        ("nowhere:app", "there is no module 'nowhere'"),
        ("shop:state", "is no raddle.App"),
        ("empty:app", "has no routines"),
        ("broken:app", "ZeroDivisionError"),
        ("untyped:app", "untyped:odd"),
    ]:
        (project.directory / "empty.py").write_text("import raddle\napp = raddle.App('x')\n")
        (project.directory / "broken.py").write_text("1 / 0\n")
        (project.directory / "untyped.py").write_text(
            "import raddle\napp = raddle.App('x')\n@app.routine\ndef odd(x: 'Nowhere') -> None: ...\n"
        )
        said = project.raddle("worker", "start", "--python", app, code=2)
        assert reason in said, said


def test_a_routine_that_asks_to_run_again_has_not_failed(shop: Project) -> None:
    record = shop.run("shop:not_yet")
    assert record["state"] == "completed", record
    assert (record["report"]["value"], record["failures"]) == (3, 0)


def test_a_fresh_task_has_a_process_of_its_own(shop: Project) -> None:
    warm = shop.value("shop:host_process")[0]
    pids = []
    for _ in range(2):
        tid = shop.submit_spec(target={"routine": "shop:alone"}, isolation="process")
        pids.append(shop.finish(tid)["report"]["value"])
    assert len({warm, *pids}) == 3
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_handler_takes_tasks_by_its_capabilities(project: Project) -> None:
    (project.directory / "painter.handler.toml").write_text(
        f"""
name = "painter"
provides = ["canvas"]
kind = "host"
command = ["{sys.executable}", "-m", "raddle.host", "shop:app"]
"""
    )
    project.raddle("worker", "start", "--handlers", ".", "--caps", "canvas", "--hosts", "1")
    fields = {"target": {"handler": "any"}, "requires": ["canvas"]}
    record = project.finish(project.submit_spec(**fields, args=["loom"]))
    assert record["report"]["value"] == {"painted": "loom", "attempt": 1, "requires": ["canvas"]}
    record = project.finish(project.submit_spec(**fields))
    assert "does not accept" in record["report"]["exit"]["message"]


def test_a_changed_file_is_loaded_anew(project: Project) -> None:
    path = project.directory / "young.py"
    text = "import raddle\napp = raddle.App('x')\n@app.routine\ndef age() -> int: return 1\n"
    path.write_text(text)
    project.start_worker("young:app", "--hosts", "1", "--reload")
    assert project.value("young:age") == 1
    path.write_text(text.replace("return 1", "return 22"))
    wait_until(lambda: project.value("young:age") == 22, "the change is seen")


def test_an_app_is_checked(project: Project) -> None:
    (project.directory / "good.py").write_text(
        "import raddle\napp = raddle.App('x')\n@app.routine\ndef f(x: int) -> int: return x\n"
    )
    (project.directory / "bad.py").write_text(
        "import raddle\napp = raddle.App('x')\n@app.routine\ndef f(x: 'Nowhere') -> None: ...\n"
    )
    (project.directory / "threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "from good import app\n"
    )
    assert project.raddle("python", "check", "good:app") == "good:f  plain\n"
    assert "bad:f: the annotations" in project.raddle("python", "check", "bad:app", code=1)
    found = json.loads(project.raddle("python", "check", "threads:app", "--json"))
    assert "have started 1 threads" in found["notes"][0]
    assert "no module 'nowhere'" in project.raddle("python", "check", "nowhere:app", code=1)


def test_a_pool_worker_takes_calls_of_the_app(project: Project) -> None:
    pool = f"shop-{os.getpid()}"
    server = project.start("pool", "serve", "--python", "shop:app", "--name", pool, "--workers", "1")
    log = project.directory / "process-0.log"
    wait_until(lambda: "unix" in log.read_text(), "the worker serves")
    code = f"""
import time
import raddle
from shop import add, count

with raddle.WorkerPool(discovery=raddle.LocalDiscovery("{pool}")) as pool:
    while not pool.workers():
        time.sleep(0.05)
    print(add.call(40), list(count.iter(3)))
"""
    called = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project.directory,
        env={**project.env, "RADDLE_BINARY": project.program},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=DEADLINE,
    )
    assert called.stdout == "42 [0, 1, 2]\n", called.stdout
    server.terminate()
    assert server.wait(60) == 0
