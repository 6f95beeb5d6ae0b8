"""Submitting tasks, and what a handle does. No worker runs here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

import raddle

app = raddle.App("shop")


@app.routine
def add(a: int, b: int = 1) -> int:
    return a + b


@app.routine(queue="mail", priority=9, timeout="5m", retry=3)
async def send(to: str) -> None: ...


@app.routine
def words(text: str) -> Iterator[str]:
    yield from text.split()


pytestmark = pytest.mark.usefixtures("project")


def test_submits_a_task_and_reads_its_record() -> None:
    task = add.submit(1, b=2)
    status = task.status()
    assert len(task.tid) == 19
    assert (status.state, status.attempt, status.is_finished) == ("created", 0, False)
    assert status.spec == {"target": {"routine": f"{__name__}:add"}, "args": [1, 2]}


def test_options_of_the_routine_and_of_the_task_are_in_the_spec() -> None:
    task = send.with_(delay=timedelta(minutes=1), unique_key="x", metadata={"by": "me"}).submit("a@b.c")
    spec = task.status().spec
    assert (spec["queue"], spec["priority"], spec["timeout"]) == ("mail", 9, 300)
    assert (spec["retry"]["attempts"], spec["unique_key"], spec["metadata"]) == (3, "x", {"by": "me"})
    assert "delay" in spec
    assert "delay" not in send.submit("d@e.f").status().spec, "the routine itself has not changed"


def test_a_unique_key_gives_the_unfinished_task_back() -> None:
    keyed = add.with_(unique_key="report")
    first, second = keyed.submit(1, 2), keyed.submit(1, 2)
    assert (first.existing, second.existing) == (False, True)
    assert first == second


def test_many_tasks_are_stored_in_few_transactions() -> None:
    tasks = add.submit_many((number, number) for number in range(2500))
    assert len({task.tid for task in tasks}) == 2500
    assert tasks[2499].status().spec["args"] == [2499, 2499]


async def _async_verbs() -> None:
    task = await add.asubmit(1, 2)
    assert (await task.astatus()).state == "created"
    tasks = await asyncio.gather(*(add.asubmit(number) for number in range(100)))
    assert len({task.tid for task in tasks}) == 100
    await task.akill()
    with pytest.raises(raddle.TaskKilled) as killed:
        await task.aresult()
    assert (killed.value.tid, killed.value.state) == (task.tid, "killed")
    again = await task.aretry()
    assert (await again.astatus()).state == "created"
    assert [event.kind async for event in task.afollow()] == ["created", "killed"]


def test_every_verb_has_an_async_twin() -> None:
    asyncio.run(_async_verbs())


def test_a_blocking_verb_in_an_event_loop_names_its_twin() -> None:
    async def block() -> None:
        add.submit(1, 2)

    with pytest.raises(raddle.Error, match=r"would block the event loop here: use 'await .*add\.asubmit\(\)'"):
        asyncio.run(block())


def test_waiting_for_a_result_ends_in_time() -> None:
    task = add.submit(1, 2)
    with pytest.raises(raddle.TimedOut, match="did not end in time: it is created"):
        task.result(timeout=0.1)
    with pytest.raises(TimeoutError):
        task.result(timeout=timedelta(milliseconds=1))


def test_a_cancelled_wait_ends_the_request_only() -> None:
    async def wait() -> raddle.TaskStatus:
        task = await add.asubmit(1, 2)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(task.aresult(), 0.1)
        return await task.astatus()

    assert asyncio.run(wait()).state == "created"


def test_arguments_that_do_not_fit_are_refused_here() -> None:
    with pytest.raises(raddle.Arguments, match="add"):
        add.submit()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="object"):
        add.submit(object(), 1)  # type: ignore[arg-type]


def test_an_invalid_option_is_named() -> None:
    with pytest.raises(raddle.Invalid, match="priority"):
        add.with_(priority=10).submit(1, 2)


def test_an_unknown_task_is_not_found() -> None:
    add.submit(1, 2)
    with pytest.raises(raddle.NotFound) as found:
        raddle.task("1700000000000000000").status()
    assert found.value.hint == "'raddle task list' shows those there are"
    assert isinstance(found.value, LookupError)


def test_short_ids_are_completed() -> None:
    task = add.submit(1, 2)
    assert raddle.task(task.tid[-10:]).status().tid == task.tid


def test_stop_pause_and_resume_reach_the_task() -> None:
    task = add.submit(1, 2)
    task.pause()
    assert task.status().paused
    task.resume()
    assert not task.status().paused
    task.stop()
    with pytest.raises(raddle.TaskCancelled):
        task.result()


def test_schedules_are_stored_replaced_and_removed() -> None:
    add.schedule("nightly", cron="0 3 * * 1-5", tz="Europe/Berlin", missed="skip", args=(1, 2))
    add.schedule("nightly", every="10s", jitter=1, args=(1, 2))
    raddle.unschedule("nightly")
    with pytest.raises(raddle.NotFound, match="there is no schedule 'nightly'"):
        raddle.unschedule("nightly")
    with pytest.raises(raddle.Invalid, match="cron"):
        add.schedule("wrong", cron="61 3 * * *", args=(1, 2))


def test_runs_a_command_beside_the_program() -> None:
    ended = raddle.run(["sh", "-c", "echo out; echo err >&2; exit 3"], check=False)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, "out\n", "err\n")
    assert raddle.run(["echo", "hello"]).stdout == "hello\n"
    with pytest.raises(raddle.TaskFailed) as failed:
        raddle.run(["sh", "-c", "echo why >&2; exit 4"])
    assert (failed.value.exit_code, failed.value.stderr) == (4, "why\n")
    with pytest.raises(TypeError, match="list of words"):
        raddle.run("echo hello")


def test_submitted_commands_are_tasks() -> None:
    task = raddle.submit_command(["sleep", "1"], queue="slow")
    assert task.status().spec["target"] == {"command": ["sleep", "1"]}
    assert task.logs() == ""
    task.kill()
    assert [event.kind for event in task.follow()] == ["created", "killed"]


def test_the_broker_is_that_of_configure_then_queue_url_then_the_directory(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = add.submit(1, 2)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setenv("QUEUE_URL", f"sqlite:{elsewhere}/a.db")
    there = add.submit(1, 2)
    raddle.configure(queue_url=f"sqlite:{elsewhere}/b.db")
    third = add.submit(1, 2)
    assert (elsewhere / "a.db").exists() and (elsewhere / "b.db").exists()
    with pytest.raises(raddle.NotFound):
        here.status()
    raddle.configure()
    assert there.status().state == "created"
    monkeypatch.delenv("QUEUE_URL")
    assert here.status().state == "created"
    raddle.configure(queue_url="nonsense://")
    with pytest.raises(raddle.Invalid, match="sqlite:PATH"):
        third.status()
