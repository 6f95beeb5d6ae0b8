//! Words to tasks: stop, kill, pause, resume, ping, retry, recover.

use crate::world::{World, wait_until};

fn state_after(world: &World, word: &str, tid: &str) -> String {
    let ran = world.raddle(["task", word, tid]).ok();
    ran.text().trim().rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn applies_commands_to_a_waiting_task_at_once() {
    let world = World::new();
    let tid = world.submit(&["--", "true"]);
    assert_eq!(state_after(&world, "ping", &tid), "created");
    assert_eq!(state_after(&world, "pause", &tid), "paused");
    assert_eq!(world.task(&tid)["paused"], true);
    assert_eq!(state_after(&world, "ping", &tid), "paused");
    assert_eq!(state_after(&world, "resume", &tid), "created");
    assert_eq!(state_after(&world, "stop", &tid), "cancelled");
    world
        .raddle(["task", "stop", &tid])
        .code(2)
        .stderr_contains("is cancelled already");
    world
        .raddle(["task", "ping", "1000000000000000000"])
        .code(2)
        .stderr_contains("no task");
}

#[test]
fn a_worker_replies_for_its_running_task() {
    let world = World::new();
    world.worker(&["--concurrency", "2"]);
    let tid = world.submit(&["--", "sleep", "600"]);
    world.wait_for_state(&tid, "running");
    assert_eq!(state_after(&world, "ping", &tid), "running");
    assert_eq!(state_after(&world, "pause", &tid), "paused");
    assert_eq!(state_after(&world, "resume", &tid), "running");
    assert_eq!(state_after(&world, "stop", &tid), "cancelled");

    let tids = world.submit(&["--array", "1-2", "--", "sleep", "600"]);
    let tids: Vec<&str> = tids.lines().collect();
    tids.iter()
        .for_each(|tid| world.wait_for_state(tid, "running"));
    let records = world
        .raddle(["task", "kill", "--json", tids[0], tids[1]])
        .ok()
        .json();
    assert_eq!(
        (&records[0]["state"], &records[1]["state"]),
        (&"killed".into(), &"killed".into())
    );
}

/// A worker is a task, and answers the same words.
#[test]
fn pings_pauses_and_resumes_a_resident_worker() {
    let world = World::new();
    let worker = world.worker(&["--concurrency", "1"]);
    let status = || {
        let asked = r#"{"command": "STATUS", "request_id": "mine"}"#;
        world
            .raddle(["queue", "write", &format!("T{worker}.ctrl_in"), asked])
            .ok();
        let replies = format!("T{worker}.ctrl_out");
        let mut reply = serde_json::Value::Null;
        wait_until("it answers", || {
            let read = world.raddle(["queue", "read", "--all", &replies]).ok();
            let mut replies = read
                .lines()
                .into_iter()
                .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            reply = replies
                .rfind(|reply| reply["request_id"] == "mine")
                .unwrap_or_default();
            !reply.is_null()
        });
        (
            reply["command"].as_str().unwrap().to_owned(),
            reply["state"].as_str().unwrap().to_owned(),
        )
    };
    let says = |state: &str| ("STATUS".to_owned(), state.to_owned());
    assert_eq!(state_after(&world, "ping", &worker), "listening");
    assert_eq!(status(), says("listening"));

    assert_eq!(state_after(&world, "pause", &worker), "paused");
    let tid = world.submit(&["--", "sh", "-c", "while ! [ -e go ]; do sleep 0.02; done"]);
    let entry = || world.workers()[0].clone();
    wait_until("the registry says so", || entry()["status"] == "paused");
    assert_eq!(
        (state_after(&world, "ping", &worker), status()),
        ("paused".into(), says("paused"))
    );
    assert_eq!(world.task(&tid)["state"], "created", "it takes nothing");

    assert_eq!(state_after(&world, "resume", &worker), "listening");
    world.wait_for_state(&tid, "running");
    assert_eq!(
        (state_after(&world, "ping", &worker), status()),
        ("busy".into(), says("busy"))
    );
    // Running tasks continue when their worker takes no new ones.
    assert_eq!(state_after(&world, "pause", &worker), "paused");
    world.file("go", "");
    world.raddle(["wait", &tid]).ok();
    assert_eq!(state_after(&world, "resume", &worker), "listening");
}

#[test]
fn commands_to_several_tasks_continue_after_a_failure() {
    let world = World::new();
    let tid = world.submit(&["--", "true"]);
    let ran = world
        .raddle(["task", "stop", "1000000000000000000", &tid])
        .code(2)
        .stderr_contains("no task");
    assert_eq!(ran.text(), format!("{tid} cancelled\n"));
}

#[test]
fn retries_finished_tasks() {
    let world = World::new();
    world.raddle(["run", "--", "false"]).code(1);
    world.raddle(["run", "--", "sh", "-c", "exit 2"]).code(2);
    let tasks = world.raddle(["task", "list", "--json"]).ok().json();
    let tid = tasks[0]["tid"].as_str().unwrap();
    let new = world
        .raddle(["task", "retry", tid])
        .ok()
        .text()
        .trim()
        .to_owned();
    let spec = world.task(&new)["spec"].clone();
    assert_eq!(
        (&spec["target"], &spec["metadata"]["retry_of"]),
        (&tasks[0]["spec"]["target"], &tid.into())
    );
    assert_eq!(world.task(tid)["dead"], false);
    world
        .raddle(["task", "retry", &new])
        .code(2)
        .stderr_contains("only a finished task");
    let records = world
        .raddle(["task", "retry", "--all-dead", "--json"])
        .ok()
        .json();
    assert_eq!(
        (records.as_array().unwrap().len(), &records[0]["retry_of"]),
        (1, &tasks[1]["tid"])
    );
    world
        .raddle(["task", "retry", "--all-dead"])
        .ok()
        .stderr_contains("no task is in the dead-letter queue");
}

#[test]
fn recovers_a_stuck_task() {
    let world = World::new();
    let worker = world
        .raddle(["worker", "start", "--json", "--concurrency", "1"])
        .ok()
        .json();
    let action = |tid: &str| world.raddle(["task", "recover", "--json", tid]).ok().json();

    let script = "echo x >> begun; test $RADDLE_ATTEMPT = 3 || sleep 600";
    let tid = world.submit(&["--", "sh", "-c", script]);
    wait_until("the first attempt runs", || {
        world.path().join("begun").exists()
    });
    assert_eq!(action(&tid)["action"], "requeued");
    let attempts = || world.read("begun").lines().count();
    wait_until("the second attempt runs", || attempts() == 2);

    crate::world::kill(worker["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    wait_until("the worker counts as gone", || {
        world.raddle(["worker", "list", "--json"]).json() == serde_json::json!([])
    });
    assert_eq!(action(&tid)["action"], "reclaimed");
    world.wait_for_state(&tid, "created");
    assert_eq!(action(&tid)["action"], "none");
    world.raddle(["task", "pause", &tid]).ok();
    assert_eq!(action(&tid)["action"], "resumed");
    world
        .raddle([
            "worker",
            "start",
            "--no-detach",
            "--idle-exit",
            "0",
            "--quiet",
        ])
        .ok();
    assert_eq!(world.task(&tid)["state"], "completed");
}

/// Its work is done: to do it a second time is no recovery.
#[test]
fn recovers_a_completed_task_only_with_force() {
    let world = World::new();
    let run = |command: &str| {
        let ran = world.raddle(["run", "--json", "--", command]);
        ran.json()["tid"].as_str().unwrap().to_owned()
    };
    let completed = run("true");
    world
        .raddle(["task", "recover", &completed])
        .code(2)
        .stderr_contains("is completed")
        .stderr_contains("--force");
    assert_eq!(
        world
            .raddle(["task", "list", "--json"])
            .ok()
            .json()
            .as_array()
            .unwrap()
            .len(),
        1
    );
    for args in [
        &["--force", completed.as_str()][..],
        &[run("false").as_str()],
    ] {
        let again = world
            .raddle([&["task", "recover", "--json"], args].concat())
            .ok()
            .json();
        assert_eq!(
            (&again["action"], again["new_tid"].as_str().unwrap().len()),
            (&"resubmitted".into(), 19)
        );
    }
}

#[test]
fn refuses_workers_where_tasks_are_expected() {
    let world = World::new();
    let worker = world.worker(&["--concurrency", "2"]);
    let words = |args: &[&str]| world.raddle([&["task"], args, &[worker.as_str()]].concat());
    let explained = words(&["explain"]).ok();
    assert!(
        explained
            .text()
            .contains("is a worker, alive and active, with 0 of 2 slots busy"),
        "{explained:?}"
    );
    assert!(
        explained.text().contains("raddle worker stop"),
        "{explained:?}"
    );
    words(&["recover"])
        .code(2)
        .stderr_contains("is a worker, alive and active")
        .stderr_contains("raddle worker stop");
    words(&["retry"])
        .code(2)
        .stderr_contains("is a worker, alive and active");
    world.raddle(["worker", "stop", &worker]).ok();
    let explained = words(&["explain"]).ok();
    assert!(
        explained
            .text()
            .contains("is a worker that is gone, completed"),
        "{explained:?}"
    );
    assert!(
        explained.text().contains("raddle worker start"),
        "{explained:?}"
    );
    words(&["recover"])
        .code(2)
        .stderr_contains("is a worker that is gone")
        .stderr_contains("raddle worker start");
    let tid = world.raddle(["run", "--json", "--", "true"]).ok().json()["tid"]
        .as_str()
        .unwrap()
        .to_owned();
    world
        .raddle(["task", "retry", &tid, &worker])
        .code(2)
        .stderr_contains("is a worker that is gone");
    assert_eq!(
        world
            .raddle(["task", "list", "--json"])
            .ok()
            .json()
            .as_array()
            .unwrap()
            .len(),
        1,
        "none or all"
    );
}

#[test]
fn keeps_the_message_of_a_stopped_task_with_on_stop_keep() {
    let world = World::new();
    let tid = world.submit(&["--on-stop", "keep", "--", "true"]);
    let reserved = format!("T{tid}.reserved");
    assert_eq!(state_after(&world, "stop", &tid), "cancelled");
    assert!(
        world
            .raddle(["queue", "peek", &reserved])
            .ok()
            .text()
            .contains(&tid)
    );
}

/// A pause lasts until a `resume`, also if the worker is lost or stopped.
#[test]
fn a_pause_survives_its_worker() {
    for kill in ["kill -9 $(cat pid)", "raddle worker stop --all --kill"] {
        let world = World::new();
        let worker = world.raddle(["worker", "start", "--json"]).ok().json();
        world.file("pid", worker["pid"].to_string());
        let tid = world.submit(&[
            "--",
            "sh",
            "-c",
            "echo begun >> begun; test $RADDLE_ATTEMPT != 1 || sleep 600",
        ]);
        wait_until("it runs", || world.path().join("begun").exists());
        world.raddle(["task", "pause", &tid]).ok();
        wait_until("it is paused", || world.task(&tid)["paused"] == true);
        world.bash(kill).ok();
        world.worker(&[]);
        wait_until("it is taken back", || {
            world.task(&tid)["state"] == "created"
        });
        world.raddle(["run", "--", "true"]).ok();
        let task = world.task(&tid);
        assert_eq!(
            (&task["state"], &task["paused"]),
            (&"created".into(), &true.into()),
            "{kill}"
        );
        world.raddle(["task", "resume", &tid]).ok();
        world.raddle(["wait", &tid]).ok();
        assert_eq!(world.read("begun"), "begun\nbegun\n", "{kill}");
    }
}

/// Its command ignores `SIGTERM`, and its worker is killed before the grace period is over.
#[test]
fn a_stop_survives_the_worker_that_received_it() {
    let world = World::new();
    let worker = world.raddle(["worker", "start", "--json"]).ok().json();
    world.file("pid", worker["pid"].to_string());
    let script = "trap 'echo told > told' TERM; echo begun >> begun; while :; do sleep 0.1; done";
    let tid = world.submit(&["--", "sh", "-c", script]);
    wait_until("it runs", || world.path().join("begun").exists());
    let stop = world.start(["task", "stop", &tid]);
    wait_until("the command receives SIGTERM", || {
        world.path().join("told").exists()
    });
    world.bash("kill -9 $(cat pid)").ok();
    world.worker(&[]);
    assert!(stop.finish().ok().text().contains("cancelled"));
    world.raddle(["run", "--", "true"]).ok();
    assert_eq!(world.task(&tid)["state"], "cancelled");
    assert_eq!(world.read("begun"), "begun\n");
}

/// Concurrent callers: each skips the tasks that another has submitted again.
#[test]
fn retries_each_dead_letter_once() {
    const DEAD: usize = 200;
    let world = World::new();
    world
        .raddle(["submit", "--array", &format!("1-{DEAD}"), "--", "false"])
        .ok();
    world
        .raddle([
            "worker",
            "start",
            "--no-detach",
            "--idle-exit",
            "0",
            "--concurrency",
            "2",
        ])
        .ok();
    let dead = || {
        world
            .raddle(["task", "list", "--dead", "--limit", "1000", "--json"])
            .ok()
            .json()
            .as_array()
            .unwrap()
            .len()
    };
    assert_eq!(dead(), DEAD);
    let retry = || {
        world
            .raddle(["task", "retry", "--all-dead"])
            .ok()
            .lines()
            .len()
    };
    let made: usize = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..3).map(|_| scope.spawn(retry)).collect();
        tries
            .into_iter()
            .map(|attempt| attempt.join().unwrap())
            .sum()
    });
    assert_eq!((made, dead()), (DEAD, 0));
}

/// Two dead letters with one key cannot both run at the same time: one of them stays.
#[test]
fn keeps_a_dead_letter_whose_key_is_taken() {
    let world = World::new();
    for _ in 0..2 {
        world
            .raddle(["run", "--unique-key", "k", "--", "false"])
            .code(1);
    }
    let ran = world
        .raddle(["task", "retry", "--all-dead"])
        .code(2)
        .stderr_contains("has its unique key");
    assert_eq!(ran.lines().len(), 1);
    let holder = ran.text().trim();
    assert!(ran.stderr.contains(holder), "{}", ran.stderr);
    let dead = world
        .raddle(["task", "list", "--dead", "--json"])
        .ok()
        .json();
    assert_eq!(dead.as_array().unwrap().len(), 1);
    let again = world
        .raddle(["task", "retry", "--all-dead", "--json"])
        .code(2)
        .json();
    assert_eq!(
        (&again[0]["retry_of"], &again[0]["held_by"]),
        (&dead[0]["tid"], &holder.into())
    );
}

#[test]
fn names_a_routine_that_no_live_worker_offers() {
    let world = World::new();
    world.worker(&[]);
    let tid = world.submit(&["--routine", "typo", "--", "1"]);
    let explained = world.raddle(["task", "explain", &tid]).ok();
    assert!(
        explained
            .text()
            .contains("needs @routine:typo, and no live worker has that"),
        "{explained:?}"
    );
    assert!(
        explained.text().contains("'PROGRAM worker start'"),
        "{explained:?}"
    );
}
