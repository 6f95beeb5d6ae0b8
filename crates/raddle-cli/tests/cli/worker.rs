//! `raddle worker`, and process titles.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    thread,
    time::{Duration, Instant},
};

use crate::world::{World, wait_until};

const LEASE: Duration = Duration::from_secs(3);

#[test]
fn a_background_worker_has_an_id_a_title_and_a_log() {
    let world = World::new();
    let started = world
        .raddle([
            "worker",
            "start",
            "--json",
            "--name",
            "my worker",
            "--caps",
            "b,a",
        ])
        .ok()
        .json();
    let tid = started["tid"].as_str().unwrap();
    let log = started["log"].as_str().unwrap();
    assert!(log.ends_with(&format!(".raddle/worker-{tid}.log")) && fs::metadata(log).is_ok());
    let workers = world.workers();
    assert_eq!(
        (&workers[0]["tid"], &workers[0]["pid"]),
        (&started["tid"], &started["pid"])
    );
    assert_eq!(
        workers[0]["capabilities"],
        serde_json::json!(["@sandbox", "a", "b"])
    );
    let title = || {
        let bytes = fs::read(format!("/proc/{}/cmdline", started["pid"])).unwrap_or_default();
        String::from_utf8_lossy(&bytes)
            .trim_end_matches('\0')
            .to_owned()
    };
    let expected = format!("raddle-{}:my_worker:", &tid[9..]);
    wait_until("it wears its title", || title().starts_with(&expected));
    let ran = world.raddle(["worker", "stop", tid]).ok();
    assert_eq!(ran.text(), format!("{tid} completed\n"));
    wait_until("it has said why it left", || {
        fs::read_to_string(log).unwrap().contains("it was stopped")
    });
    world.raddle(["worker", "stop", tid]).ok();
}

#[test]
fn the_environment_configures_a_worker() {
    let world = World::new();
    let script =
        "export WORKER_CAPS=gpu,cpu WORKER_CONCURRENCY=3 WORKER_IDLE_EXIT=600; raddle worker start";
    world.bash(script).ok();
    let workers = world.workers();
    assert_eq!(workers[0]["concurrency"], 3);
    assert_eq!(
        workers[0]["capabilities"],
        serde_json::json!(["@sandbox", "cpu", "gpu"])
    );
}

#[test]
fn a_concurrency_of_one_means_the_same_as_a_flag_and_as_a_variable() {
    let world = World::new();
    let run = |command: &str, said: &str| {
        world.submit(&["--array", "1-2", "--", "true"]);
        world
            .bash(&format!("{command} --idle-exit 0"))
            .ok()
            .stderr_contains(said);
        world
            .bash("raddle worker start --no-detach --idle-exit 0")
            .ok();
    };
    run(
        "WORKER_CONCURRENCY=1 raddle worker start --no-detach",
        "ran 2 tasks",
    );
    run(
        "raddle worker start --no-detach --concurrency 1",
        "ran 2 tasks",
    );
    run(
        "WORKER_ONCE=false WORKER_CONCURRENCY=1 raddle worker start --no-detach",
        "ran 2 tasks",
    );
    run(
        "WORKER_ONCE=auto WORKER_CONCURRENCY=1 raddle worker start --no-detach",
        "ran 1 task",
    );
    run(
        "WORKER_ONCE=auto raddle worker start --no-detach --concurrency 1",
        "ran 1 task",
    );
    run(
        "WORKER_ONCE=auto raddle worker start --no-detach",
        "ran 1 task",
    );
    run(
        "WORKER_ONCE=auto WORKER_CONCURRENCY=2 raddle worker start --no-detach",
        "ran 2 tasks",
    );
    run(
        "WORKER_ONCE=auto raddle worker start --no-detach --once=false",
        "ran 2 tasks",
    );
}

#[test]
fn ignores_empty_variables_and_blanks_in_lists() {
    let world = World::new();
    let empty = "QUEUE_URL= WORKER_CAPS= WORKER_PLUGINS= WORKER_CONCURRENCY= WORKER_ONCE= WORKER_IDLE_EXIT= \
                 WORKER_MAX_UPTIME= WORKER_MIN_ISOLATION= WORKER_TASK_IMAGE= WORKER_NO_DETACH= WARM_POOL= RADDLE_LOG_FORMAT= RADDLE_LOG=";
    let flags = "--no-detach --idle-exit 0 --queues 'default, mail'";
    world.submit(&["--queue", "mail", "--", "true"]);
    world
        .bash(&format!("{empty} exec raddle worker start {flags}"))
        .ok()
        .stderr_contains("ran 1 task");
    let script = format!(
        "{empty} WARM_POOL=' ' exec raddle spawner run --max-workers 2 --queues 'default, mail'"
    );
    let spawner = world.start_bash(&script);
    wait_until("two are warm", || world.one_shots().len() == 2);
    assert_eq!(
        world.one_shots()[0]["queues"],
        serde_json::json!(["default", "mail"])
    );
    spawner.stop().ok();
    // As in a list of capabilities.
    std::fs::create_dir(world.path().join("handlers")).unwrap();
    for name in ["A", "B", "C"] {
        let text = format!("name = '{name}'\nprovides = ['cpu']\ncommand = ['true']\n");
        world.file(&format!("handlers/{name}.handler.toml"), text);
    }
    let script =
        "WORKER_CAPS='cpu, gpu' WORKER_PLUGINS='A, B' raddle worker start --handlers handlers";
    world.bash(script).ok();
    let caps = world.workers()[0]["capabilities"].to_string();
    assert!(
        caps.contains("gpu")
            && caps.contains("@handler:A")
            && caps.contains("@handler:B")
            && !caps.contains("@handler:C"),
        "{caps}"
    );
}

#[test]
fn a_one_shot_worker_takes_one_task_and_exits() {
    let world = World::new();
    let tids = world.submit(&["--array", "1-3", "--", "sh", "-c", "echo {}; test {} != 2"]);
    let tids: Vec<&str> = tids.lines().collect();
    let flag = ["worker", "start", "--no-detach", "--once"];
    world
        .raddle(flag)
        .ok()
        .stderr_contains("ran 1 task and exited: its task has ended");
    assert_eq!(world.task(tids[0])["state"], "completed");
    assert_eq!(world.task(tids[1])["state"], "created");
    // A task that fails is no failure of its worker.
    world
        .bash("WORKER_ONCE=true raddle worker start --no-detach")
        .ok()
        .stderr_contains("ran 1 task");
    assert_eq!(world.task(tids[1])["state"], "failed");
    world
        .bash("WORKER_ONCE=auto raddle worker start --no-detach --idle-exit 600")
        .ok()
        .stderr_contains("ran 1 task");
    world
        .raddle(flag.into_iter().chain(["--idle-exit", "0.1"]))
        .ok()
        .stderr_contains("ran 0 tasks and exited: it was idle");
    world
        .raddle(flag.into_iter().chain(["--max-uptime", "0.1"]))
        .ok()
        .stderr_contains("ran 0 tasks and exited: it has reached its maximum uptime");
    world
        .raddle(flag.into_iter().chain(["--concurrency", "2"]))
        .code(2)
        .stderr_contains("--once");
    world
        .bash("WORKER_CONCURRENCY=many raddle worker start --no-detach")
        .code(2)
        .stderr_contains("'many' for '--concurrency");
    let ran = world
        .bash("QUEUE_URL=stub:// raddle worker start --no-detach --idle-exit 0")
        .ok();
    ran.stderr_contains("ran 0 tasks");
}

#[test]
fn an_old_or_terminated_worker_finishes_its_task() {
    let world = World::new();
    let script = "echo x >> begun; while ! test -e go; do sleep 0.02; done";
    let begun = || world.lines("begun").len();
    let title = |status: &str| {
        world
            .processes()
            .iter()
            .any(|(_, title)| title.contains(&format!(":worker:{status}")))
    };
    let old = world.submit(&["--", "sh", "-c", script]);
    let worker = world.start([
        "worker",
        "start",
        "--no-detach",
        "--concurrency",
        "1",
        "--max-uptime",
        "0.5",
    ]);
    wait_until("the task runs", || begun() == 1);
    wait_until("it is old", || title("draining"));
    let next = world.submit(&["--", "sh", "-c", script]);
    world.file("go", "");
    worker
        .finish()
        .ok()
        .stderr_contains("ran 1 task and exited: it has reached its maximum uptime");
    assert_eq!(
        (&world.task(&old)["state"], &world.task(&next)["state"]),
        (&"completed".into(), &"created".into())
    );

    fs::remove_file(world.path().join("go")).unwrap();
    let worker = world.start(["worker", "start", "--no-detach", "--once"]);
    wait_until("the next one runs", || begun() == 2 && title("busy"));
    worker.signal(libc::SIGTERM);
    wait_until("it heard", || worker.stderr().contains("stopping"));
    world.file("go", "");
    worker.finish().ok();
    assert_eq!(world.task(&next)["state"], "completed");
}

#[test]
fn a_failing_one_shot_worker_leaves_its_task_to_others() {
    let world = World::new();
    let serving = world
        .raddle([
            "worker",
            "start",
            "--json",
            "--serve",
            "agent.sock",
            "--queues",
            "none",
        ])
        .ok()
        .json();
    let (pid, url) = (
        serving["pid"].to_string(),
        serving["serves"].as_str().unwrap().to_owned(),
    );
    let tid = world.submit(&["--", "sh", "-c", "test $RADDLE_ATTEMPT != 1 || sleep 600"]);
    let worker = world.start([
        "worker",
        "start",
        "--no-detach",
        "--once",
        "--queue-url",
        &url,
    ]);
    world.wait_for_state(&tid, "running");
    // Its lease cannot be renewed any more, and with that it loses its task.
    world.bash(&format!("kill -9 {pid}")).ok();
    worker.finish().code(1);
    world
        .raddle(["worker", "start", "--no-detach", "--once"])
        .ok()
        .stderr_contains("ran 1 task");
    assert_eq!(world.task(&tid)["state"], "completed");
}

#[test]
fn a_worker_exits_when_no_task_waits() {
    let world = World::new();
    let tids = world.submit(&["--array", "1-20", "--", "true"]);
    let ran = world
        .raddle(["worker", "start", "--no-detach", "--idle-exit", "0"])
        .ok()
        .stderr_contains("ran 20 tasks");
    assert_eq!(ran.lines()[0].len(), 19);
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    world.worker(&["--idle-exit", "0.2"]);
    wait_until("it has left", || world.workers() == serde_json::json!([]));
}

#[test]
fn a_worker_finishes_its_task_or_releases_it_after_a_second_signal() {
    let world = World::new();
    let script = "echo x >> begun; while ! test -e go; do sleep 0.02; done";
    let tid = world.submit(&["--", "sh", "-c", script]);
    let worker = world.start(["worker", "start", "--no-detach", "--concurrency", "1"]);
    let begun = || world.lines("begun").len();
    wait_until("the task runs", || begun() == 1);
    worker.signal(libc::SIGTERM);
    wait_until("it heard", || worker.stderr().contains("stopping"));
    world.wait_for_state(&tid, "running");
    worker.stop().ok();
    assert_eq!(world.task(&tid)["state"], "created");

    let worker = world.start(["worker", "start", "--no-detach", "--concurrency", "1"]);
    wait_until("the task runs again", || begun() == 2);
    worker.signal(libc::SIGINT);
    wait_until("it heard", || worker.stderr().contains("stopping"));
    world.file("go", "");
    worker.finish().ok();
    assert_eq!(world.task(&tid)["state"], "completed");
}

#[test]
fn stops_or_kills_all_workers() {
    let world = World::new();
    world.worker(&[]);
    world.worker(&[]);
    let tid = world.submit(&["--", "sleep", "600"]);
    world.wait_for_state(&tid, "running");
    let ran = world
        .raddle(["worker", "stop", "--all", "--timeout", "1"])
        .code(124);
    let said = ran
        .stderr_contains("is finishing 1 task: wait longer")
        .stderr_contains("raddle worker stop --kill")
        .stderr;
    assert!(!said.contains("task 1"), "it is named a worker: {said}");
    let ran = world.raddle(["worker", "stop", "--all", "--kill"]).ok();
    assert!(!ran.lines().is_empty());
    assert_eq!(world.task(&tid)["state"], "created");
    world
        .raddle(["worker", "stop", "--all"])
        .ok()
        .stderr_contains("no worker is alive");
    world
        .raddle(["worker", "stop", &tid])
        .code(2)
        .stderr_contains("is not a worker");
}

#[test]
fn two_workers_started_at_once_share_the_work() {
    let world = World::new();
    let starts = [
        world.start(["worker", "start"]),
        world.start(["worker", "start"]),
    ];
    let tids: Vec<String> = starts
        .map(|start| start.finish().ok().text().to_owned())
        .into();
    assert_ne!(tids[0], tids[1]);
    // No task continues before both workers have begun one. Their runners' parents are the workers.
    let script = "cut -d' ' -f4 /proc/$PPID/stat >> workers
        until [ $(sort -u workers | wc -l) = 2 ]; do sleep 0.02; done
        echo {} >> ran";
    let tids = world.submit(&["--array", "1-200", "--", "sh", "-c", script]);
    world
        .raddle(["wait", "--timeout", "50"].into_iter().chain(tids.lines()))
        .ok();
    let ran = world.read("ran");
    let mut numbers: Vec<u32> = ran.lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(
        numbers,
        (1..=200).collect::<Vec<_>>(),
        "each ran exactly once"
    );
}

/// In a PID namespace without others, processes are numbered in the order of their creation,
/// threads included.
#[test]
fn a_resident_worker_starts_one_process_for_each_task_below_one_runner() {
    const TASKS: usize = 100;
    let world = World::new();
    let script = format!(
        "raddle submit --array 1-{TASKS} -- sh -c 'echo $$ $PPID >> births' > /dev/null
        raddle worker start --no-detach --concurrency 1 --idle-exit 0 --quiet"
    );
    world.bash_in_namespaces(&script).ok();
    let births = world.read("births");
    let (pids, runners): (Vec<usize>, BTreeSet<usize>) = births
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(pid, runner)| {
            (
                pid.parse::<usize>().unwrap(),
                runner.parse::<usize>().unwrap(),
            )
        })
        .unzip();
    assert_eq!((pids.len(), runners.len()), (TASKS, 1), "{births}");
    // The worker itself may start some threads, whose number does not grow with that of the tasks.
    let born = pids.last().unwrap() - pids[0] + 1;
    assert!(
        (TASKS..TASKS * 3 / 2).contains(&born),
        "{born} for {TASKS} tasks: {births}"
    );
}

#[test]
fn another_worker_finishes_the_task_of_a_killed_one() {
    let world = World::new();
    let first = world.raddle(["worker", "start", "--json"]).ok().json();
    let script = "echo x >> begun; test $RADDLE_ATTEMPT != 1 || sleep 600";
    let tid = world.submit(&["--", "sh", "-c", script]);
    wait_until("it runs", || world.path().join("begun").exists());
    // Only an attempt that is known to have begun counts as lost.
    world.wait_for_state(&tid, "running");
    world.worker(&[]);
    let killed = Instant::now();
    crate::world::kill(first["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    world.raddle(["wait", &tid]).ok();
    assert!(
        killed.elapsed() < LEASE,
        "it took {:?}: no worker has to wait for the lease",
        killed.elapsed()
    );
    assert_eq!(world.read("begun"), "x\nx\n");
    let shown = world.raddle(["task", "status", &tid]).ok();
    let lines = [
        "attempt    2\n",
        "failures   0 of 1\n",
        "losses     1 of 3, by lost workers\n",
    ];
    assert!(
        lines.iter().all(|line| shown.text().contains(line)),
        "{}",
        shown.text()
    );
}

#[test]
fn names_the_reason_why_a_worker_cannot_start() {
    let world = World::new();
    let path = world.file(
        "not.db",
        "this is no database, but a text that is long enough to be looked at",
    );
    let url = format!("sqlite:{}", path.display());
    let ran = world
        .raddle(["worker", "start", "--queue-url", &url])
        .code(125)
        .stderr_contains("not a Raddle database");
    assert!(ran.stdout.is_empty());
    world
        .raddle(["worker", "start", "--queues", "b a d"])
        .code(2)
        .stderr_contains("not a queue name");
}

#[test]
fn a_worker_that_was_stalled_past_its_lease_finishes_no_task_twice() {
    let world = World::new();
    let first = world.raddle(["worker", "start", "--json"]).ok().json();
    let pid = first["pid"].as_i64().unwrap() as i32;
    let script = "echo begun >> ran; test $RADDLE_ATTEMPT != 1 || sleep 600; echo ended >> ran";
    let tid = world.submit(&["--", "sh", "-c", script]);
    wait_until("it runs", || world.path().join("ran").exists());
    world.wait_for_state(&tid, "running");
    crate::world::kill(pid, libc::SIGSTOP);
    world.worker(&[]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    crate::world::kill(pid, libc::SIGCONT);
    wait_until("both are there again", || {
        world
            .workers()
            .as_array()
            .is_some_and(|workers| workers.len() == 2)
    });
    assert_eq!(world.read("ran"), "begun\nbegun\nended\n");
    let task = world.task(&tid);
    assert_eq!(
        (&task["state"], &task["attempt"], &task["losses"]),
        (&"completed".into(), &2.into(), &1.into())
    );
}

/// For longer than a lease: first while a worker comes, then while it works.
#[test]
fn a_locked_database_does_not_cost_a_worker_its_tasks() {
    let world = World::new();
    let hold = |time: Duration| {
        let file = File::options()
            .write(true)
            .open(world.path().join(".raddle/raddle.db-state"))
            .unwrap();
        file.lock().unwrap();
        thread::sleep(time);
    };
    let first = world.submit(&["--", "sh", "-c", "sleep 0.3; echo $RADDLE_ATTEMPT"]);
    // The first who comes after its maker completes a new database, and needs the lock for that
    // already.
    world.wait_for_state(&first, "created");
    thread::scope(|scope| {
        let holder = scope.spawn(|| hold(LEASE + LEASE / 4));
        // It waits for the lock, and is there when that is free.
        world.worker(&[]);
        holder.join().unwrap();
    });
    assert_eq!(
        world.raddle(["result", "--wait", &first]).ok().text(),
        "1\n"
    );
    let second = world.submit(&[
        "--",
        "sh",
        "-c",
        "touch begun; while ! test -e go; do sleep 0.02; done; echo $RADDLE_ATTEMPT",
    ]);
    wait_until("it runs", || world.path().join("begun").exists());
    world.wait_for_state(&second, "running");
    hold(LEASE * 2);
    world.file("go", "");
    assert_eq!(
        world.raddle(["result", "--wait", &second]).ok().text(),
        "1\n"
    );
    let task = world.task(&second);
    assert_eq!((&task["attempt"], &task["losses"]), (&1.into(), &0.into()));
    world.raddle(["worker", "stop", "--all"]).ok();
}
