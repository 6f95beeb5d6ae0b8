//! Workers are tasks: what the recursive model promises, one by one, and what people type when a
//! hierarchy is stuck. They see no processes but their own.

use serde_json::{Value, json};

use crate::world::{CommandOutput, World, wait_until};

const TASKS: &str = "
[task.grep]
command = ['sh', '-c', 'echo $0 $1 $RADDLE_TID; while ! test -e go; do sleep 0.05; done', '{pattern}', '{file}']
params = { pattern = 'string', file = { default = '/etc/hosts' } }
";

/// A prime, below it a manager `unix`, and below that a task `grep` that runs until there is a file
/// `go`; then the one-liners.
fn with_a_hierarchy(one_liners: &str) -> (World, CommandOutput) {
    let world = World::new();
    world.file("tasks.toml", TASKS);
    let script = format!(
        r#"set -e
        raddle manager start > prime.tid
        raddle worker spawn --type unix --registry tasks.toml > unix.tid
        raddle queue write raddle.spawn.requests '{{"task": "grep", "params": {{"pattern": "test"}}}}' > grep.tid
        until raddle task list --status running --json | grep -q '"grep"'; do sleep 0.05; done
        set +e
        {one_liners}"#
    );
    let ran = world.bash_in_namespaces(&script);
    (world, ran)
}

fn json_of(world: &World, name: &str) -> Value {
    serde_json::from_str(&world.read_trimmed(name)).unwrap()
}

/// All questions about workers, in one hierarchy: a process tree takes a while to start.
#[test]
fn workers_are_tasks_spawn_children_and_other_workers_under_one_id() {
    let (world, ran) = with_a_hierarchy(
        r#"raddle task status --json $(cat prime.tid) > worker_is_task
        raddle task status --json $(cat grep.tid) > spawns_child
        ps aux | grep "raddle-.*:grep:running" | grep -v 'grep raddle-' > process_list
        raddle queue peek raddle.workers.registry --all > registry
        touch go
        raddle wait $(cat grep.tid)
        raddle result $(cat grep.tid) > correlation
        raddle queue peek raddle.tasks.log --all | grep $(cat grep.tid) > log
        raddle queue peek raddle.spawn.results --all | grep $(cat grep.tid) > results
        raddle task status --json $(cat unix.tid) > hierarchy
        raddle manager stop"#,
    );
    ran.ok();
    let (prime, unix, grep) = (
        world.read_trimmed("prime.tid"),
        world.read_trimmed("unix.tid"),
        world.read_trimmed("grep.tid"),
    );
    // test_worker_is_task: it has the lifecycle of a task, and no end of its own.
    let worker = json_of(&world, "worker_is_task");
    assert_eq!(
        (&worker["tid"], &worker["state"]),
        (&json!(prime), &json!("running"))
    );
    let spec = worker["spec"].as_object().unwrap();
    assert_eq!(
        (&spec["name"], &spec["target"]),
        (&json!("worker-prime"), &json!({ "service": "prime" }))
    );
    assert!(!spec.contains_key("timeout"), "{spec:?}");
    // test_worker_spawns_child: the child appears in the process list.
    let child = json_of(&world, "spawns_child");
    assert_eq!(
        (&child["parent"], &child["state"]),
        (&json!(unix), &json!("running"))
    );
    assert!(
        world
            .read_trimmed("process_list")
            .contains(&format!("raddle-{}:grep:running", &grep[9..]))
    );
    // test_tid_correlation: the id of the message is the id of the task, everywhere.
    assert_eq!(
        world.read_trimmed("correlation"),
        format!("test /etc/hosts {grep}")
    );
    for step in ["created", "running", "completed"] {
        assert!(
            world
                .read_trimmed("log")
                .contains(&format!("\"event\":\"{step}\"")),
            "{step}"
        );
    }
    let results = world.read_trimmed("results");
    assert!(
        results.contains("\"status\":\"spawned\"") && results.contains("\"status\":\"completed\""),
        "{results}"
    );
    // test_worker_hierarchy: the second is there because the first was asked for it.
    let secondary = json_of(&world, "hierarchy");
    assert_eq!(secondary["spec"]["name"], "worker-unix");
    assert_ne!(secondary["parent"], Value::Null);
    // The registry says who can do what, and where to ask.
    let registry = world.read_trimmed("registry");
    let entry = registry
        .lines()
        .find(|line| line.contains("worker.unix.requests"))
        .unwrap_or_default();
    for part in [
        unix.as_str(),
        "\"name\":\"worker-unix\"",
        "\"type\":\"unix\"",
        "\"grep\"",
        "\"status\":\"active\"",
        "\"load\":",
    ] {
        assert!(entry.contains(part), "{part}: {registry}");
    }
}

/// test_worker_hierarchy, by the letter: the request names nothing but the type.
#[test]
fn spawns_a_worker_by_its_type() {
    for registry in [&[][..], &["--registry", "tasks.toml"]] {
        let world = World::new();
        world.file("tasks.toml", TASKS);
        let prime = world
            .raddle([&["manager", "start"], registry].concat())
            .ok()
            .text()
            .trim()
            .to_owned();
        let request = r#"{"task": "worker", "params": {"type": "secondary"}}"#;
        let asked = world
            .raddle(["queue", "write", "raddle.spawn.requests", request])
            .ok()
            .text()
            .trim()
            .to_owned();
        let mut managers = json!([]);
        wait_until("it is there", || {
            managers = world.raddle(["manager", "list", "--json"]).ok().json();
            managers
                .as_array()
                .unwrap()
                .iter()
                .any(|entry| entry["type"] == "secondary")
        });
        let secondary = managers
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["type"] == "secondary")
            .unwrap();
        assert_eq!(
            (&secondary["name"], &secondary["tid"], &secondary["parent"]),
            (&json!("worker-secondary"), &json!(asked), &json!(prime))
        );
        assert_eq!(secondary["queue"], "worker.secondary.requests");
        let lists_grep = secondary["capabilities"]
            .as_array()
            .unwrap()
            .contains(&json!("grep"));
        assert_eq!(lists_grep, !registry.is_empty(), "{secondary}");
        assert_eq!(world.task(&asked)["parent"], prime.as_str());
        world.raddle(["manager", "stop"]).ok();
    }
}

/// `route_task`, by the letter: the request is written to the queue of an active worker that has
/// the capability.
#[test]
fn a_request_is_routed_by_the_registry() {
    let world = World::new();
    world.file("count.sh", r#"read task; echo "{\"result\": $task}""#);
    world.file(
        "count.handler.toml",
        "name = 'count'\nprovides = ['text']\ncommand = ['sh', 'count.sh']\n",
    );
    world.worker(&["--concurrency", "1", "--handlers", ".", "--caps", "text"]);
    let registry = world
        .raddle(["queue", "peek", "raddle.workers.registry"])
        .ok()
        .json();
    assert!(
        registry["capabilities"]
            .as_array()
            .unwrap()
            .contains(&json!("text")),
        "{registry}"
    );
    let queue = registry["queue"].as_str().unwrap();
    for task in ["text", "count"] {
        let request = json!({ "task": task, "params": { "n": 7 } }).to_string();
        let tid = world
            .raddle(["queue", "write", queue, &request])
            .ok()
            .text()
            .trim()
            .to_owned();
        world.raddle(["wait", &tid]).ok();
        let told = world.task(&tid)["report"]["value"].clone();
        assert_eq!(
            (&told["tid"], &told["spec"]["kwargs"]),
            (&json!(tid), &json!({ "n": 7 }))
        );
    }
    let unknown = r#"{"task": "video"}"#;
    world
        .raddle(["queue", "write", queue, unknown])
        .code(2)
        .stderr_contains("unknown task 'video'")
        .stderr_contains("count");
    world
        .raddle(["queue", "write", queue, "count"])
        .code(2)
        .stderr_contains("not JSON");
}

#[test]
fn system_tools_find_inspect_and_end_a_hierarchy() {
    let (world, ran) = with_a_hierarchy(
        r#"ps aux | grep "raddle-.*:worker-" > managers
        for i in $(seq 100); do
            ps -eo args | grep '^raddle-' | cut -d: -f2,3 | sort | uniq -c > titles
            test $(grep -c 'worker-.*:busy' titles) = 2 && break
            sleep 0.05
        done
        tid=$(ps aux | grep "raddle-.*:grep:running" | head -1 | cut -d- -f2 | cut -d: -f1)
        raddle tid $tid > found
        raddle queue peek T$(raddle tid $tid).reserved > reserved
        for tid in $(ps aux | grep raddle- | cut -d- -f2 | cut -d: -f1 | sort -u); do
            full_tid=$(raddle tid $tid) || continue
            raddle task status $full_tid >> every 2>&1
        done
        raddle task recover $(cat grep.tid)
        pkill -f "raddle-"
        for i in $(seq 300); do pgrep -f "raddle-" > left || break; pkill -f "raddle-"; sleep 0.1; done
        wc -l < left"#,
    );
    let ran = ran.ok();
    assert!(ran.text().contains("requeued"), "{}", ran.text());
    assert_eq!(
        *ran.lines().last().unwrap(),
        "0",
        "nothing is left: {ran:?}"
    );
    assert_eq!(world.read_trimmed("found"), world.read_trimmed("grep.tid"));
    assert!(
        world
            .read_trimmed("reserved")
            .contains(&world.read_trimmed("grep.tid"))
    );
    let managers = world.read_trimmed("managers");
    for title in ["worker-prime:", "worker-unix:"] {
        assert!(managers.contains(title), "{managers}");
    }
    // Of the managers only the runner of one that is a task itself is called running.
    let titles = world.read_trimmed("titles");
    for title in [
        "1 grep:running",
        "1 worker-prime:busy",
        "1 worker-unix:running",
        "1 worker-unix:busy",
    ] {
        assert!(
            titles.lines().any(|line| line.trim() == title),
            "{title}: {titles}"
        );
    }
    for tid in ["prime.tid", "unix.tid", "grep.tid"] {
        assert!(
            world
                .read_trimmed("every")
                .contains(&world.read_trimmed(tid)),
            "{tid}"
        );
    }
}
