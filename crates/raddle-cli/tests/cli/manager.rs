//! `raddle manager` and `raddle worker spawn`: the prime, managers of registries, and what is asked
//! of them. Real processes, on SQLite and on Redis.

use serde_json::{Value, json};

use crate::{
    spawner::{end, on_redis},
    world::{RunningCommand, World, wait_until},
};

const TASKS: &str = r#"
[task.note]
command = ["sh", "-c", "echo \"$1\" >> notes; echo done", "note", "{text}"]
[task.note.params]
text = "string"

[task.hold]
command = ["sh", "-c", "echo begun >> held; while ! test -e go; do sleep 0.02; done; echo \"$1\" >> notes", "hold", "{text}"]
limits = { memory_mb = 64 }
params = { text = "string" }
"#;

/// The same, but what holds is deaf to SIGTERM: it ends when it may go, or by SIGKILL.
fn deaf() -> String {
    TASKS.replace("echo begun", "trap '' TERM; echo begun")
}

/// A manager in the foreground.
fn manager(world: &World, flags: &[&str]) -> RunningCommand {
    let manager = world.start([&["manager", "serve"], flags].concat());
    manager.tid();
    manager
}

fn unix(world: &World, more: &[&str]) -> RunningCommand {
    world.file("tasks.toml", TASKS);
    manager(
        world,
        &[&["--type", "unix", "--registry", "tasks.toml"], more].concat(),
    )
}

/// Writes a request, and returns its id.
fn send_request(world: &World, queue: &str, request: impl ToString) -> String {
    world
        .raddle(["queue", "write", queue, &request.to_string()])
        .ok()
        .text()
        .trim()
        .to_owned()
}

fn prime(world: &World, request: impl ToString) -> String {
    send_request(world, "raddle.spawn.requests", request)
}

fn command(words: &[&str]) -> Value {
    json!({ "spec": { "name": "job", "target": { "command": words } } })
}

/// Returns the results of a request.
fn results(world: &World, queue: &str, tid: &str) -> Vec<Value> {
    let shown = world
        .raddle(["queue", "peek", queue, "--all", "--json"])
        .ok()
        .json();
    let bodies = shown.as_array().unwrap().iter().map(body);
    bodies.filter(|result| result["tid"] == tid).collect()
}

/// The body of a message, which `--json` shows as what it is.
fn body(message: &Value) -> Value {
    match &message["body"] {
        Value::String(text) => serde_json::from_str(text).unwrap(),
        body => body.clone(),
    }
}

fn statuses(results: &[Value]) -> Vec<&str> {
    results
        .iter()
        .map(|result| result["status"].as_str().unwrap())
        .collect()
}

fn refusal(world: &World, queue: &str, tid: &str) -> String {
    wait_until("it is answered", || !results(world, queue, tid).is_empty());
    let results = results(world, queue, tid);
    assert_eq!(statuses(&results), ["refused"], "{results:?}");
    assert_eq!(results[0]["exit_code"], 2);
    results[0]["error"].as_str().unwrap().to_owned()
}

fn managers(world: &World) -> Vec<Value> {
    world.list(&["manager", "list"]).as_array().unwrap().clone()
}

fn notes(world: &World) -> Vec<String> {
    let mut notes: Vec<String> = world.lines("notes");
    notes.sort();
    notes
}

/// Waits until so many tasks that hold have begun to.
fn until_held(world: &World, tasks: usize) {
    let begun = || world.lines("held").len();
    wait_until("it has begun", || begun() == tasks);
}

fn on_both_engines(test: impl Fn(&World)) {
    test(&World::new());
    let (world, server) = on_redis();
    test(&world);
    world.raddle(["worker", "stop", "--all", "--kill", "--quiet"]);
    end(server);
}

#[test]
fn a_request_to_the_root_manager_is_a_task_with_the_id_of_its_message() {
    on_both_engines(|world| {
        let prime_tid = {
            let waiting = prime(world, command(&["sh", "-c", "echo $RADDLE_TID"]));
            let peeked = world
                .raddle(["queue", "peek", "raddle.spawn.requests"])
                .ok();
            assert!(
                peeked.text().contains("RADDLE_TID"),
                "it waits there: {}",
                peeked.text()
            );
            let running = manager(world, &[]);
            let tid = running.stdout().trim().to_owned();
            world.raddle(["wait", &waiting]).ok();
            assert_eq!(
                world.raddle(["result", &waiting]).ok().text().trim(),
                waiting,
                "one id, from request to result"
            );
            assert_eq!(
                world.task(&waiting)["parent"],
                Value::Null,
                "no manager was there"
            );
            let asked = prime(world, command(&["sh", "-c", "exit 3"]));
            world.raddle(["wait", &asked]).code(1);
            let results = results(world, "raddle.spawn.results", &asked);
            assert_eq!(statuses(&results), ["spawned", "failed"], "{results:?}");
            assert_eq!(
                (&results[1]["exit_code"], &results[1]["parent_tid"]),
                (&json!(3), &json!(tid))
            );
            let registry = world
                .raddle([
                    "queue",
                    "peek",
                    "raddle.workers.registry",
                    "--all",
                    "--json",
                ])
                .ok()
                .json();
            let registry = registry.as_array().unwrap().iter().map(body);
            let entry = registry
                .into_iter()
                .find(|entry| entry["tid"] == tid.as_str())
                .unwrap();
            assert_eq!(
                (&entry["name"], &entry["type"]),
                (&json!("worker-prime"), &json!("prime"))
            );
            assert_eq!(
                (&entry["status"], &entry["queue"]),
                (&json!("active"), &json!("raddle.spawn.requests"))
            );
            wait_until("it has told what it has spawned", || {
                managers(world)[0]["spawned_count"] == 2
            });
            world.raddle(["task", "ping", &tid]).ok();
            running.stop().ok();
            tid
        };
        assert_eq!(world.task(&prime_tid)["state"], "completed");
    });
}

#[test]
fn a_manager_spawns_only_tasks_of_its_registry() {
    on_both_engines(|world| {
        let running = unix(world, &["--limits", "memory_mb=128,timeout=60,max_tasks=4"]);
        let queue = "worker.unix.requests";
        let good = send_request(
            world,
            queue,
            json!({ "task": "note", "params": { "text": "a b; $(touch gotcha) 'x'" } }),
        );
        world.raddle(["wait", &good]).ok();
        assert_eq!(
            notes(world),
            ["a b; $(touch gotcha) 'x'"],
            "it stays one argument"
        );
        assert!(!world.path().join("gotcha").exists());
        assert_eq!(world.task(&good)["parent"], running.stdout().trim());
        // One bad message after the other, and none of them blocks the next.
        let shape = r#"write {"task": NAME, "params": {…}}"#;
        let params = json!({ "text": "x" });
        for (request, why) in [
            ("note it".to_owned(), format!("refused: not JSON (expected ident at line 1 column 2): {shape}")),
            (
                json!({ "task": "rm" }).to_string(),
                "refused: unknown task 'rm': worker-unix lists hold, note".to_owned(),
            ),
            (
                json!({ "task": "note", "params": { "txt": "x" } }).to_string(),
                "refused: task 'note' has no parameter 'txt': it takes text".to_owned(),
            ),
            (
                json!({ "task": "note", "params": params, "limits": { "memory_mb": 256 } }).to_string(),
                "refused: memory_mb 256 is above the limit of this manager, which is 128: ask for 128 or less"
                    .to_owned(),
            ),
            (
                json!({ "task": "note", "params": params, "timeout": "2m" }).to_string(),
                "refused: timeout 120s is above the limit of this manager, which is 60s: ask for 60s or less"
                    .to_owned(),
            ),
            (
                command(&["touch", "gotcha"]).to_string(),
                "refused: worker-unix spawns what its registry lists, and nothing else: ask it for a task by its name"
                    .to_owned(),
            ),
        ] {
            let tid = send_request(world, queue, request);
            assert_eq!(refusal(world, "worker.unix.results", &tid), why);
        }
        // Nor does it run a task that comes by another way.
        let smuggled = world.submit(&["--queue", queue, "--", "touch", "gotcha"]);
        world.raddle(["wait", &smuggled]).code(1);
        assert!(!world.path().join("gotcha").exists());
        let last = send_request(
            world,
            queue,
            json!({ "task": "note", "params": { "text": "z" } }),
        );
        world.raddle(["wait", &last]).ok();
        assert!(
            running.stderr().contains("a request was refused"),
            "{}",
            running.stderr()
        );
        running.stop().ok();
    });
}

#[test]
fn errors_of_a_registry_name_the_line() {
    let world = World::new();
    world.file(
        "tasks.toml",
        "# What may be done here.\n[task.grep]\ncommand = [\"grep\", \"{pattern}\"]\n",
    );
    let says = "tasks.toml:2: task 'grep': '{pattern}' has a place for 'pattern', which is not among its params: declare it there";
    let flags = ["--type", "unix", "--registry", "tasks.toml"];
    world
        .raddle([&["manager", "serve"], &flags[..]].concat())
        .code(2)
        .stderr_contains(says);
    world
        .raddle([&["manager", "start"], &flags[..]].concat())
        .code(2)
        .stderr_contains(says);
    world
        .raddle([&["worker", "spawn"], &flags[..]].concat())
        .code(2)
        .stderr_contains(says);
    world.file("tasks.toml", "");
    world
        .raddle([&["manager", "serve"], &flags[..]].concat())
        .code(2)
        .stderr_contains("tasks.toml: lists no task");
    world
        .raddle(["manager", "serve", "--type", "unix"])
        .code(2)
        .stderr_contains("name the file with --registry");
    world
        .raddle(["manager", "serve", "--type", "one-shot"])
        .code(2)
        .stderr_contains("it is the name of another kind of worker");
    world
        .raddle(["manager", "serve", "--limits", "memory=1"])
        .code(2)
        .stderr_contains("'memory=1' is not a limit");
    world
        .raddle(["manager", "stop", "unix"])
        .code(2)
        .stderr_contains("no broker at");
}

#[test]
fn the_next_root_manager_adopts_tasks_of_a_killed_one() {
    on_both_engines(|world| {
        world.file("tasks.toml", TASKS);
        let first = manager(world, &["--registry", "tasks.toml"]);
        let held = prime(
            world,
            json!({ "task": "hold", "params": { "text": "held" } }),
        );
        world.wait_for_state(&held, "running");
        wait_until("it has begun", || world.path().join("held").exists());
        let pid = world.task(&held)["pid"].as_u64().unwrap();
        first.signal(libc::SIGKILL);
        first.finish();
        // Requests wait while no manager runs.
        let requests: Vec<String> = (0..20)
            .map(|n| {
                prime(
                    world,
                    command(&["sh", "-c", &format!("echo {n:02} >> notes")]),
                )
            })
            .collect();
        let next = manager(world, &["--registry", "tasks.toml"]);
        world
            .raddle(
                ["wait"]
                    .into_iter()
                    .chain(requests.iter().map(String::as_str)),
            )
            .ok();
        let task = world.task(&held);
        assert_eq!(
            (&task["state"], &task["pid"]),
            (&json!("running"), &json!(pid)),
            "the same process goes on"
        );
        world.file("go", "");
        world.raddle(["wait", &held]).ok();
        assert_eq!(world.task(&held)["attempt"], 1);
        let expected: Vec<String> = (0..20)
            .map(|n| format!("{n:02}"))
            .chain(["held".into()])
            .collect();
        assert_eq!(notes(world), expected, "each ran once");
        next.stop().ok();
    });
}

/// Its idle workers would take one request each.
#[test]
fn a_paused_manager_runs_nothing() {
    on_both_engines(|world| {
        let running = manager(world, &["--warm-pool", "2"]);
        let tid = running.tid();
        wait_until("its workers are idle", || world.one_shots().len() == 2);
        world.raddle(["task", "pause", &tid]).ok();
        assert_eq!(
            world.one_shots(),
            Vec::<Value>::new(),
            "none is left that could take a request"
        );
        let asked = prime(world, command(&["sh", "-c", "echo ran >> notes"]));
        world.raddle(["wait", "--timeout", "1", &asked]).code(124);
        assert_eq!(world.task(&asked)["state"], "created");
        world.raddle(["task", "pause", &tid]).ok();
        world.raddle(["task", "resume", &tid]).ok();
        world.raddle(["wait", &asked]).ok();
        assert_eq!(notes(world), ["ran"]);
        running.stop().ok();
    });
}

/// Its workers reach the broker through it, and their leases must not run out with its own.
#[test]
fn tasks_of_a_stopped_manager_continue() {
    on_both_engines(|world| {
        world.file("tasks.toml", TASKS);
        let running = manager(world, &["--registry", "tasks.toml"]);
        let held = prime(
            world,
            json!({ "task": "hold", "params": { "text": "held" } }),
        );
        until_held(world, 1);
        // The command may run before its start is recorded.
        wait_until("the start is recorded", || {
            world.task(&held)["pid"].is_u64()
        });
        let pid = world.task(&held)["pid"].clone();
        running.signal(libc::SIGSTOP);
        wait_until("it is taken for gone", || managers(world).is_empty());
        // For longer than any lease that was granted before.
        world.raddle(["wait", "--timeout", "4", &held]).code(124);
        let task = world.task(&held);
        assert_eq!(
            (&task["state"], &task["attempt"], &task["pid"]),
            (&json!("running"), &json!(1), &pid)
        );
        world.file("go", "");
        world.raddle(["wait", &held]).ok();
        assert_eq!(
            (notes(world), &world.task(&held)["attempt"]),
            (vec!["held".to_owned()], &json!(1))
        );
        running.signal(libc::SIGCONT);
        let next = prime(
            world,
            json!({ "task": "note", "params": { "text": "next" } }),
        );
        world.raddle(["wait", &next]).ok();
        running.stop().ok();
    });
}

/// The registry says where a worker of a manager is asked: as that manager is.
#[test]
fn requests_to_a_worker_of_a_manager_are_requests_to_the_manager() {
    on_both_engines(|world| {
        let running = unix(world, &["--warm-pool", "2"]);
        wait_until("its workers are idle", || world.one_shots().len() == 2);
        let worker = world.one_shots().remove(0);
        assert_eq!(worker["queue"], "worker.unix.requests");
        let request = json!({ "task": "note", "params": { "text": "asked" } });
        for queue in [
            "worker.unix.requests".to_owned(),
            format!("T{}.inbox", worker["tid"].as_str().unwrap()),
        ] {
            let idle = || {
                world
                    .one_shots()
                    .iter()
                    .any(|entry| entry["tid"] == worker["tid"])
            };
            if queue.ends_with(".inbox") && !idle() {
                continue;
            }
            world
                .raddle(["wait", &send_request(world, &queue, &request)])
                .ok();
        }
        assert!(notes(world).contains(&"asked".to_owned()));
        running.stop().ok();
    });
}

#[test]
fn two_root_managers_share_requests() {
    on_both_engines(|world| {
        let primes = [manager(world, &[]), manager(world, &[])];
        let requests: Vec<String> = (0..30)
            .map(|n| {
                prime(
                    world,
                    command(&["sh", "-c", &format!("echo {n:02} >> notes")]),
                )
            })
            .collect();
        world
            .raddle(
                ["wait"]
                    .into_iter()
                    .chain(requests.iter().map(String::as_str)),
            )
            .ok();
        assert_eq!(
            notes(world),
            (0..30).map(|n| format!("{n:02}")).collect::<Vec<_>>()
        );
        primes.into_iter().for_each(|prime| _ = prime.stop().ok());
    });
}

/// Has a manager finish, then give back what it runs, then kill that: each when it is known to have
/// received the command before. Its task has to ignore SIGTERM, or all may be over before any
/// has seen that it is stopping.
fn kill_in_stages(world: &World, manager: &RunningCommand) {
    let tid = manager.stdout().trim().to_owned();
    for status in ["draining", "stopping"] {
        manager.signal(libc::SIGTERM);
        let title = format!("raddle-{}:worker-prime:{status}", &tid[9..]);
        wait_until(status, || {
            world
                .processes()
                .iter()
                .any(|(_, line)| line.contains(&title))
        });
    }
    manager.signal(libc::SIGTERM);
}

#[test]
fn killing_a_root_manager_does_not_affect_tasks_of_another() {
    on_both_engines(|world| {
        world.file("tasks.toml", deaf());
        let hold = |text: &str, begun: usize| {
            let tid = prime(world, json!({ "task": "hold", "params": { "text": text } }));
            world.wait_for_state(&tid, "running");
            until_held(world, begun);
            tid
        };
        // One task is all that each has room for, so that the other is left to the second.
        let flags = [
            "--registry",
            "tasks.toml",
            "--warm-pool",
            "0",
            "--limits",
            "max_tasks=1",
        ];
        let stays = manager(world, &flags);
        let kept = hold("kept", 1);
        let goes = manager(world, &flags);
        let back = hold("back", 2);
        let list = world.workers();
        let parent_of = |tid: &str| {
            let worker = world.task(tid)["worker"].clone();
            list.as_array()
                .unwrap()
                .iter()
                .find(|entry| entry["tid"] == worker)
                .unwrap()["parent"]
                .clone()
        };
        assert_eq!(
            (parent_of(&kept), parent_of(&back)),
            (json!(stays.stdout().trim()), json!(goes.stdout().trim()))
        );
        let pid = world.task(&kept)["pid"].clone();
        kill_in_stages(world, &goes);
        goes.finish().ok();
        wait_until("its task is released", || {
            world.task(&back)["state"] == "created"
        });
        let task = world.task(&kept);
        assert_eq!(
            (&task["state"], &task["pid"], &task["attempt"]),
            (&json!("running"), &pid, &json!(1))
        );
        world.file("go", "");
        world.raddle(["wait", &kept, &back]).ok();
        assert_eq!(world.task(&kept)["attempt"], 1);
        stays.stop().ok();
    });
}

#[test]
fn a_second_stop_of_a_root_manager_reaches_its_managers() {
    let world = World::new();
    world.file("tasks.toml", deaf());
    let first = manager(&world, &[]);
    world
        .raddle([
            "worker",
            "spawn",
            "--type",
            "unix",
            "--registry",
            "tasks.toml",
        ])
        .ok();
    let held = send_request(
        &world,
        "worker.unix.requests",
        json!({ "task": "hold", "params": { "text": "x" } }),
    );
    world.wait_for_state(&held, "running");
    until_held(&world, 1);
    // The manager has no parent from now on: only control commands reach it.
    first.signal(libc::SIGKILL);
    first.finish();
    let next = manager(&world, &[]);
    kill_in_stages(&world, &next);
    next.finish();
    let is_left = || managers(&world).iter().any(|entry| entry["type"] == "unix");
    wait_until("the manager has left", || !is_left());
    assert_eq!(
        world.task(&held)["state"],
        "created",
        "its task was released"
    );
}

#[test]
fn a_root_manager_spawns_managers_and_stops_them_with_itself() {
    on_both_engines(|world| {
        world.file("tasks.toml", TASKS);
        let first = world
            .raddle(["manager", "start"])
            .ok()
            .text()
            .trim()
            .to_owned();
        let spawn = [
            "worker",
            "spawn",
            "--type",
            "unix",
            "--registry",
            "tasks.toml",
            "--parent",
            &first,
        ];
        let unix = world.raddle(spawn).ok().text().trim().to_owned();
        let list = managers(world);
        let entry = list
            .iter()
            .find(|entry| entry["tid"] == unix.as_str())
            .unwrap();
        assert_eq!(
            (&entry["name"], &entry["queue"]),
            (&json!("worker-unix"), &json!("worker.unix.requests"))
        );
        assert_eq!(
            (&entry["parent"], &world.task(&unix)["parent"]),
            (&json!(first), &json!(first)),
            "it is a task of the root manager, under one id"
        );
        // Asked of the prime, done by who lists it.
        let held = prime(world, json!({ "task": "hold", "params": { "text": "x" } }));
        world.wait_for_state(&held, "running");
        assert_eq!(world.task(&held)["parent"], unix.as_str());
        let tree = world.raddle(["task", "tree"]).ok();
        let names = [
            "worker-prime (running",
            "└─ ",
            "worker-unix (running",
            "hold (running",
            "MiB",
        ];
        for name in names {
            assert!(tree.text().contains(name), "{name}: {}", tree.text());
        }
        let queue_sizes: Vec<usize> = tree
            .lines()
            .iter()
            .filter(|line| {
                [first.as_str(), &unix, &held]
                    .iter()
                    .any(|tid| line.contains(*tid))
            })
            .map(|line| line.chars().take_while(|c| !c.is_ascii_digit()).count())
            .collect();
        assert_eq!(queue_sizes, [0, 3, 6], "{}", tree.text());
        world.raddle(["manager", "status", &unix]).ok();
        // No manager lists it: the request is refused, or waits.
        let unknown = prime(world, json!({ "task": "awk" }));
        let why = refusal(world, "raddle.spawn.results", &unknown);
        assert!(
            why.contains("unknown task 'awk'") && why.contains("no live manager lists it"),
            "{why}"
        );
        let patient = prime(world, json!({ "task": "awk", "wait": true }));
        world.file("awk.toml", "[task.awk]\ncommand = [\"true\"]\n");
        assert_eq!(world.task(&patient)["state"], "created");
        world
            .raddle(["worker", "spawn", "--type", "awk", "--registry", "awk.toml"])
            .ok();
        world.raddle(["wait", &patient]).ok();
        world.file("go", "");
        world.raddle(["wait", &held]).ok();
        world.raddle(["manager", "stop"]).ok();
        wait_until("all have left", || managers(world).is_empty());
        assert_eq!(world.task(&unix)["state"], "completed");
    });
}

#[test]
fn a_root_manager_replaces_a_dead_manager() {
    let world = World::new();
    world.file("tasks.toml", TASKS);
    let first = manager(&world, &[]);
    let spawn = [
        "worker",
        "spawn",
        "--type",
        "unix",
        "--registry",
        "tasks.toml",
        "--json",
    ];
    let made = world.raddle(spawn).ok().json();
    crate::world::kill(made["pid"].as_i64().unwrap() as i32, libc::SIGKILL);
    wait_until("another is there", || {
        let list = managers(&world);
        list.iter()
            .any(|entry| entry["type"] == "unix" && entry["pid"] != made["pid"])
    });
    let tid = send_request(
        &world,
        "worker.unix.requests",
        json!({ "task": "note", "params": { "text": "again" } }),
    );
    world.raddle(["wait", &tid]).ok();
    first.stop().ok();
    assert!(managers(&world).is_empty());
}

#[test]
fn a_root_manager_stops_managers_of_a_killed_one() {
    on_both_engines(|world| {
        world.file("tasks.toml", TASKS);
        let first = manager(world, &[]);
        world
            .raddle([
                "worker",
                "spawn",
                "--type",
                "unix",
                "--registry",
                "tasks.toml",
            ])
            .ok();
        let pid = managers(world)
            .iter()
            .find(|entry| entry["type"] == "unix")
            .unwrap()["pid"]
            .clone();
        first.signal(libc::SIGKILL);
        first.finish();
        let next = manager(world, &[]);
        let left = managers(world);
        assert!(
            left.iter()
                .any(|entry| entry["type"] == "unix" && entry["pid"] == pid),
            "it lives on: {left:?}"
        );
        next.stop().ok();
        // The killed one is listed until its lease has run out.
        let left = managers(world);
        assert!(
            left.iter().all(|entry| entry["type"] == "prime"),
            "{left:?}"
        );
    });
}

#[test]
fn a_manager_runs_without_a_root_manager() {
    let world = World::new();
    world.file("tasks.toml", TASKS);
    let spawn = [
        "worker",
        "spawn",
        "--type",
        "unix",
        "--registry",
        "tasks.toml",
    ];
    let unix = world
        .raddle(spawn)
        .ok()
        .stderr_contains("no root manager is alive")
        .text()
        .trim()
        .to_owned();
    let status = world.raddle(["manager", "status", "unix"]).ok();
    assert!(
        status
            .text()
            .contains(&format!("manager    {unix} worker-unix")),
        "{}",
        status.text()
    );
    assert!(
        status.text().contains("tasks      hold,note"),
        "{}",
        status.text()
    );
    world
        .raddle(["queue", "write", "worker.unix.control", "STOP"])
        .ok();
    wait_until("it has left", || managers(&world).is_empty());
    world
        .raddle([
            "worker",
            "spawn",
            "--type",
            "prime",
            "--registry",
            "tasks.toml",
        ])
        .code(2)
        .stderr_contains("cannot be spawned");
}
