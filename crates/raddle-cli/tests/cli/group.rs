//! `raddle up` and `raddle group`, with real processes: on SQLite, and where the engine could
//! matter on Redis too.

mod deploy;
mod hang;
mod log;
mod recycling;
mod settings;
mod stop;
mod streams;
mod up_down;

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    spawner::{end, on_redis},
    world::{RunningCommand, World, wait_until},
};

/// Starts the groups of a file, and waits until they are up. The contents of the file stay
/// there.
fn up(world: &World, file: &str) -> RunningCommand {
    let path = world.path().join("raddle.toml");
    let before = fs::read_to_string(&path).unwrap_or_default();
    let url = before
        .lines()
        .next()
        .filter(|line| line.starts_with("queue_url"))
        .unwrap_or_default()
        .to_owned();
    fs::write(&path, format!("{url}\n{file}")).unwrap();
    let manager = world.start(["up"]);
    wait_until("they are up", || manager.stderr().contains(" up\n"));
    manager
}

/// The processes that serve a worker.
fn pids(world: &World, slug: &str) -> BTreeSet<i64> {
    let list = world.list(&["group", "list"]);
    let of_slug = list
        .as_array()
        .unwrap()
        .iter()
        .find(|view| view["slug"] == slug)
        .cloned()
        .unwrap_or_default();
    of_slug["pids"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_i64)
        .collect()
}

fn signal(pid: i64, signal: i32) {
    crate::world::kill(pid as i32, signal);
}

fn lines(world: &World, file: &str) -> Vec<String> {
    let mut lines: Vec<String> = world.lines(file);
    lines.sort();
    lines
}

/// Stops a manager, and asserts that no process is left.
fn down(world: &World, manager: RunningCommand) -> String {
    let said = manager.stop().ok().stderr;
    assert_eq!(world.processes(), []);
    said
}

const TWO_OF_ONE: &str = r#"
[process.mail]
replicas = 2
[[process.mail.worker]]
slug = "mail"
execution_timeout = "20s"
"#;

/// Including those that serve no queue themselves: a process that was stopped is not replaced.
#[test]
fn worker_stop_all_stops_managers_first() {
    let world = World::new();
    let (manager, scheduler) = (up(&world, TWO_OF_ONE), world.start(["schedule", "run"]));
    wait_until("all are there", || {
        world
            .workers()
            .as_array()
            .is_some_and(|workers| workers.len() == 4)
    });
    world.raddle(["worker", "stop", "--all"]).ok();
    for started in [manager, scheduler] {
        started.finish().ok();
    }
    assert_eq!(world.processes(), []);
}

#[test]
fn replaces_only_the_killed_process() {
    let world = World::new();
    let manager = up(&world, TWO_OF_ONE);
    let before = pids(&world, "mail");
    assert_eq!(before.len(), 2);
    let (killed, other) = (*before.first().unwrap(), *before.last().unwrap());
    signal(killed, libc::SIGKILL);
    wait_until("another has taken its place", || {
        let now = pids(&world, "mail");
        now.len() == 2 && !now.contains(&killed)
    });
    assert!(
        pids(&world, "mail").contains(&other),
        "its sibling was left alone"
    );
    let tid = world.submit(&["--queue", "mail", "--", "true"]);
    world.raddle(["wait", &tid]).ok();
    let title = manager.stdout().trim()[9..].to_owned();
    assert!(
        world
            .processes()
            .iter()
            .any(|(_, line)| line.contains(&format!("raddle-{title}:group:listening")))
    );
    let said = down(&world, manager);
    assert!(
        said.contains("ended by itself: another takes its place") && said.contains("signal 9"),
        "{said}"
    );
    assert!(said.contains("started 3 processes and exited"), "{said}");
}

#[test]
fn group_processes_are_children_of_their_manager() {
    let world = World::new();
    let (one, other) = (up(&world, TWO_OF_ONE), {
        world.file(
            "other.toml",
            "[process.b]\n[[process.b.worker]]\nslug = 'b'\n",
        );
        let other = world.start(["up", "-f", "other.toml", "--name", "second"]);
        wait_until("the second is up", || other.stderr().contains(" up\n"));
        other
    });
    let [first, second] = [&one, &other].map(|manager| manager.stdout().trim().to_owned());
    let list = world.workers();
    let of_slug = |slug: &str| {
        let serves = |entry: &&Value| entry["queues"] == serde_json::json!([slug]);
        list.as_array()
            .unwrap()
            .iter()
            .filter(serves)
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of_slug("mail")
            .iter()
            .map(|entry| &entry["parent"])
            .collect::<Vec<_>>(),
        [&first[..]; 2]
    );
    assert_eq!(of_slug("b")[0]["parent"], second.as_str());
    let groups = world.raddle(["group", "list", "--json"]).ok().json();
    assert_eq!(
        groups[0]["managers"],
        serde_json::json!([{ "tid": second, "name": "second", "status": "active" }])
    );
    assert_eq!(groups[1]["managers"][0]["tid"], first.as_str());
    let tree = world.raddle(["task", "tree", "--json"]).ok().json();
    let below = |tid: &str| {
        let top = tree
            .as_array()
            .unwrap()
            .iter()
            .find(|top| top["tid"] == tid);
        top.and_then(|top| top["children"].as_array()).map(Vec::len)
    };
    assert_eq!(
        (below(&first), below(&second)),
        (Some(2), Some(1)),
        "{tree}"
    );
    one.stop().ok();
    down(&world, other);
}

#[test]
fn refuses_a_slug_of_another_file() {
    slugs_of_two_files(&World::new());
}

#[test]
fn refuses_a_slug_of_another_file_on_redis() {
    let (world, server) = on_redis();
    slugs_of_two_files(&world);
    end(server);
}

fn slugs_of_two_files(world: &World) {
    let file = |process: &str, command: &str, every: &str| {
        format!(
            "[process.{process}]\n[[process.{process}.worker]]\nslug = 'mail'\ncommand = ['{command}']\n\
             trigger = {{ every = '{every}' }}\n"
        )
    };
    let first = up(world, &file("post", "true", "1h"));
    let tid = first.stdout().trim().to_owned();
    let url = world
        .read("raddle.toml")
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned();
    world.file(
        "other.toml",
        format!("{url}\n{}", file("other", "false", "2h")),
    );
    let other = ["up", "-f", "other.toml", "--name", "second"];
    let refused = world.raddle(other).code(2);
    let path = world.path().join("raddle.toml");
    let refused = refused.stderr_contains(&format!(
        "the slug 'mail' is that of process.post in {}",
        path.display()
    ));
    refused.stderr_contains(&format!("'raddle task stop {tid}'"));
    let groups = world.raddle(["group", "list", "--json"]).ok().json();
    assert_eq!(
        (
            &groups[0]["process"],
            groups[0]["managers"].as_array().unwrap().len()
        ),
        (&"post".into(), 1)
    );
    let trigger = world.raddle(["schedule", "list", "--json"]).ok().json()[0].clone();
    assert_eq!(
        trigger["schedule"]["task"]["target"]["command"],
        serde_json::json!(["true"]),
        "{trigger}"
    );
    // The same file may have more managers than one.
    let second = world.start(["up", "--name", "second"]);
    wait_until("the second is up", || second.stderr().contains(" up\n"));
    first.stop().ok();
    second.stop().ok();
    // Without a manager, a slug is free.
    let taken = world.start(other);
    wait_until("it is up", || taken.stderr().contains(" up\n"));
    taken.stop().ok();
}

const EVENTS: &str = r#"
[process.mail]
replicas = 2
[[process.mail.worker]]
slug = "mail"
sources = ["orders"]
command = ["sh", "-c", "echo \"mail $(cat)\" >> done"]

[process.rest]
[[process.rest.worker]]
slug = "stock"
sources = ["orders", "returns"]
command = ["sh", "-c", "echo \"stock $(cat)\" >> done"]
[[process.rest.worker]]
slug = "audit"
"#;

#[test]
fn every_worker_with_the_source_gets_each_message() {
    events(&World::new());
}

#[test]
fn every_worker_with_the_source_gets_each_message_on_redis() {
    let (world, server) = on_redis();
    events(&world);
    end(server);
}

fn events(world: &World) {
    // Messages that are stored before a process listens are not lost.
    world.raddle(["queue", "write", "orders", "1"]).ok();
    let manager = up(world, EVENTS);
    world.raddle(["queue", "write", "orders", "2"]).ok();
    world.raddle(["queue", "write", "returns", "3"]).ok();
    let all = ["mail 1", "mail 2", "stock 1", "stock 2", "stock 3"];
    wait_until("all are done", || lines(world, "done").len() >= all.len());
    assert_eq!(lines(world, "done"), all);
    manager.stop().ok();
    // A manager that is gone leaves its sources behind, and what comes waits; a second one does not
    // double anything.
    world.raddle(["queue", "write", "orders", "4"]).ok();
    let (one, other) = (up(world, EVENTS), world.start(["up", "--name", "second"]));
    wait_until("the second is up", || other.stderr().contains(" up\n"));
    world
        .bash("for i in $(seq 5 24); do raddle queue write orders $i & done; wait")
        .ok();
    wait_until("all are done", || lines(world, "done").len() >= 5 + 2 * 21);
    let done = lines(world, "done");
    assert_eq!(
        (done.len(), done.iter().collect::<BTreeSet<_>>().len()),
        (47, 47),
        "{done:?}"
    );
    assert_eq!(world.raddle(["queue", "peek", "orders"]).ok().text(), "");
    for manager in [one, other] {
        manager.stop().ok();
    }
}

#[test]
fn turns_workers_off_and_on_and_scales_them() {
    let world = World::new();
    let manager = up(&world, EVENTS);
    world
        .raddle(["group", "off", "mail"])
        .ok()
        .stderr_contains("'mail' is off");
    wait_until("no process serves it", || pids(&world, "mail").is_empty());
    world.raddle(["queue", "write", "orders", "1"]).ok();
    wait_until("the others do what is theirs", || {
        lines(&world, "done") == ["stock 1"]
    });
    let list = world.raddle(["group", "list"]).ok().text().to_owned();
    let of = |slug: &str| {
        list.lines()
            .find(|line| line.starts_with(slug))
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let tid = manager.stdout().trim().to_owned();
    assert_eq!(
        of("mail"),
        [
            "mail", "mail", "off", "2", "0", "0", "1", "orders", &tid, "(active)"
        ]
    );
    assert_eq!(of("stock")[..5], ["stock", "rest", "on", "1", "1"]);

    // One of two in a process: that is replaced by one without it.
    let before = pids(&world, "audit");
    world.raddle(["group", "off", "audit"]).ok();
    wait_until("its process is another", || {
        pids(&world, "stock").len() == 1 && pids(&world, "stock") != before
    });
    assert!(pids(&world, "audit").is_empty());

    world.raddle(["group", "on", "mail"]).ok();
    wait_until("waiting messages are processed", || {
        lines(&world, "done") == ["mail 1", "stock 1"]
    });
    let scaled = world
        .raddle(["group", "scale", "mail", "4", "--json"])
        .ok()
        .json();
    assert_eq!(
        scaled,
        serde_json::json!({ "slug": "mail", "process": "mail", "on": true, "replicas": 4 })
    );
    wait_until("there are four", || pids(&world, "mail").len() == 4);
    world.raddle(["group", "scale", "mail", "1"]).ok();
    wait_until("there is one", || pids(&world, "mail").len() == 1);
    for replicas in ["0", "2"] {
        world
            .raddle(["group", "scale", "stock", replicas])
            .code(2)
            .stderr_contains("so it has one replica");
    }
    world
        .raddle(["group", "off", "male"])
        .code(2)
        .stderr_contains("there is no worker 'male'");
    down(&world, manager);
    // It is kept, and a restart does not undo it.
    let manager = up(&world, EVENTS);
    assert_eq!(
        (pids(&world, "mail").len(), pids(&world, "audit").len()),
        (1, 0)
    );
    down(&world, manager);
}

#[test]
fn finds_and_deletes_a_worker_that_is_in_no_file() {
    let world = World::new();
    let manager = up(&world, EVENTS);
    let tid = manager.stdout().trim().to_owned();
    world
        .raddle(["group", "forget", "mail"])
        .code(2)
        .stderr_contains(&format!("'mail' is kept by the manager {tid}"));
    let found = || {
        let checks = world.raddle(["doctor", "--json"]).json()["checks"]
            .as_array()
            .unwrap()
            .clone();
        checks
            .into_iter()
            .filter(|check| check["name"].as_str().unwrap().starts_with("worker "))
            .collect::<Vec<_>>()
    };
    assert_eq!(found(), Vec::<Value>::new());
    down(&world, manager);
    let (_, rest) = EVENTS.split_once("[process.rest]").unwrap();
    let manager = up(&world, &format!("[process.rest]{rest}"));
    world.raddle(["queue", "write", "orders", "1"]).ok();
    wait_until("the other has had it", || {
        lines(&world, "done") == ["stock 1"]
    });
    let fix = "start its manager with 'raddle up', or delete it with 'raddle group forget mail'";
    assert_eq!(
        found()
            .iter()
            .map(|check| &check["fix"])
            .collect::<Vec<_>>(),
        [fix]
    );
    let forgotten = world
        .raddle(["group", "forget", "mail", "--json"])
        .ok()
        .json();
    assert_eq!(
        forgotten,
        serde_json::json!({ "slug": "mail", "waiting": 1, "sources": ["orders"], "unread": [] }),
        "waiting messages stay"
    );
    assert_eq!(found(), Vec::<Value>::new());
    world.raddle(["queue", "write", "orders", "2"]).ok();
    wait_until("the other has had it", || {
        lines(&world, "done") == ["stock 1", "stock 2"]
    });
    assert_eq!(
        world
            .raddle(["task", "list", "--queue", "mail", "--json"])
            .ok()
            .json()
            .as_array()
            .unwrap()
            .len(),
        1
    );
    world
        .raddle(["group", "forget", "mail"])
        .code(2)
        .stderr_contains("there is no worker 'mail'");
    down(&world, manager);
    world
        .raddle(["group", "forget", "stock"])
        .ok()
        .stderr_contains("'stock' is deleted, and receives no more events")
        .stderr_contains("messages that are written to 'returns' stay there from now on");
}

#[test]
fn on_error_of_the_worker_applies_to_failed_events() {
    let world = World::new();
    let worker = |slug: &str, rest: &str| {
        format!(
            "[process.{slug}]\n[[process.{slug}.worker]]\nslug = '{slug}'\nsources = ['in']\n\
             command = ['sh', '-c', 'echo {slug} >> tried; exit 3']\n{rest}\n"
        )
    };
    let retry = "on_error = 'retry'\nretry = { attempts = 2, base = '10ms' }";
    let file = [
        worker("ack", ""),
        worker("dead", "on_error = 'dead'"),
        worker("retry", retry),
    ]
    .concat();
    let manager = up(&world, &file);
    world.raddle(["queue", "write", "in", "x"]).ok();
    wait_until("all have been tried", || {
        lines(&world, "tried") == ["ack", "dead", "retry", "retry"]
    });
    wait_until("two are dead", || {
        world
            .raddle(["queue", "peek", "raddle.dead", "--all"])
            .ok()
            .lines()
            .len()
            == 2
    });
    let dead = world
        .raddle(["queue", "peek", "raddle.dead", "--all"])
        .ok()
        .text()
        .to_owned();
    assert!(
        !dead.contains("\"ack\"") && dead.contains("\"dead\"") && dead.contains("\"retry\""),
        "{dead}"
    );
    down(&world, manager);
}

#[test]
fn a_trigger_pauses_while_its_worker_is_off() {
    let world = World::new();
    let manager = up(
        &world,
        "[process.clock]\n[[process.clock.worker]]\nslug = 'tick'\ncommand = ['sh', '-c', 'echo . >> ticks']\ntrigger = { every = '200ms' }\n",
    );
    wait_until("it has ticked", || lines(&world, "ticks").len() >= 3);
    world.raddle(["group", "off", "tick"]).ok();
    wait_until("no process serves it", || pids(&world, "tick").is_empty());
    assert_eq!(
        world.raddle(["schedule", "list", "--json"]).ok().json()[0]["paused"],
        true
    );
    let before = lines(&world, "ticks").len();
    world.raddle(["group", "on", "tick"]).ok();
    wait_until("it ticks again", || lines(&world, "ticks").len() > before);
    down(&world, manager);
}

#[test]
fn a_trigger_that_is_added_while_its_worker_is_off_waits_for_it() {
    let world = World::new();
    let file = "[process.clock]\n[[process.clock.worker]]\nslug = 'tick'\ncommand = ['sh', '-c', 'echo . >> ticks']\n";
    let manager = up(&world, file);
    world.raddle(["group", "off", "tick"]).ok();
    down(&world, manager);
    let manager = up(&world, &format!("{file}trigger = {{ every = '200ms' }}\n"));
    let trigger = || world.raddle(["schedule", "list", "--json"]).ok().json()[0].clone();
    assert_eq!(
        (&trigger()["paused"], &trigger()["fired"]),
        (&true.into(), &0.into())
    );
    world.raddle(["group", "on", "tick"]).ok();
    wait_until("it ticks", || lines(&world, "ticks").len() >= 2);
    assert_eq!(trigger()["paused"], false);
    down(&world, manager);
}

#[test]
fn a_trigger_is_removed_with_its_file_and_manual_schedules_stay() {
    let world = World::new();
    world
        .raddle(["schedule", "add", "mine", "--every", "1h", "--", "true"])
        .ok();
    let clock = |slug: &str| {
        format!(
            "[process.{slug}]\n[[process.{slug}.worker]]\nslug = '{slug}'\ncommand = ['true']\ntrigger = {{ every = '1h' }}\n"
        )
    };
    let names = || {
        let list = world.raddle(["schedule", "list", "--json"]).ok().json();
        list.as_array()
            .unwrap()
            .iter()
            .map(|view| view["schedule"]["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let manager = up(&world, &[clock("tick"), clock("tock")].concat());
    assert_eq!(names(), ["mine", "tick", "tock"]);
    assert!(
        world
            .raddle(["schedule", "list"])
            .ok()
            .text()
            .contains("from the file of 'group'")
    );
    down(&world, manager);
    let manager = up(&world, &clock("tock"));
    assert_eq!(names(), ["mine", "tock"]);
    down(&world, manager);
    world.file("raddle.toml", clock("mine"));
    world
        .raddle(["up"])
        .code(2)
        .stderr_contains("there is a schedule 'mine' that was written by hand");
    assert_eq!(
        world.raddle(["schedule", "list", "--json"]).ok().json()[0]["owner"],
        Value::Null
    );
}

#[test]
fn backs_off_and_reports_a_crash_loop_without_affecting_others() {
    let world = World::new();
    let file = "[process.bad]\nstartup = ['sh', '-c', 'echo try >> tries; exit 9']\n[[process.bad.worker]]\nslug = 'bad'\n\
                [process.good]\n[[process.good.worker]]\nslug = 'good'\n";
    world.file("raddle.toml", file);
    let manager = world.start(["up"]);
    wait_until("it is said", || {
        manager
            .stderr()
            .contains("processes exit right after their start")
    });
    assert!(
        manager
            .stderr()
            .contains("the hook 'sh -c echo try >> tries; exit 9' failed"),
        "{}",
        manager.stderr()
    );
    wait_until("the other is there", || pids(&world, "good").len() == 1);
    let tid = world.submit(&["--queue", "good", "--", "true"]);
    world.raddle(["wait", &tid]).ok();
    wait_until("it brakes", || {
        world
            .workers()
            .as_array()
            .unwrap()
            .iter()
            .any(|entry| entry["status"] == "backing_off")
    });
    let (before, began) = (lines(&world, "tries").len(), Instant::now());
    std::thread::sleep(Duration::from_secs(2));
    let more = lines(&world, "tries").len() - before;
    assert!(
        more as f64 <= began.elapsed().as_secs_f64() / 0.5 + 1.0,
        "{more} tries"
    );
    down(&world, manager);
}

#[test]
fn runs_hooks_and_starts_processes_in_order() {
    let world = World::new();
    let file = "[process.second]\nafter = ['first']\nstartup = ['sh', '-c', 'echo second >> order']\n\
                shutdown = ['sh', '-c', 'echo bye >> bye']\n[[process.second.worker]]\nslug = 'second'\n\
                [process.first]\nstartup = ['sh', '-c', 'sleep 0.3; echo first >> order']\n[[process.first.worker]]\nslug = 'first'\n";
    let manager = up(&world, file);
    assert_eq!(world.read("order"), "first\nsecond\n");
    assert!(lines(&world, "bye").is_empty());
    down(&world, manager);
    assert_eq!(lines(&world, "bye"), ["bye"]);
}

#[test]
fn kills_processes_that_hooks_have_started() {
    let world = World::new();
    let leave = |name: &str, rest: &str| {
        format!("['sh', '-c', 'setsid sleep 1000 & echo $! > {name}; {rest}']")
    };
    let file = format!(
        "[process.a]\nshutdown_timeout = '1s'\nstartup = {}\nshutdown = {}\n[[process.a.worker]]\nslug = 'a'\n",
        leave("first", "true"),
        // It does not end, so that it has to be ended.
        leave("last", "sleep 1000"),
    );
    let is_there = |name: &str| {
        let pid = lines(&world, name).concat();
        assert!(!pid.is_empty(), "{name}");
        std::path::Path::new(&format!("/proc/{pid}")).exists()
    };
    let manager = up(&world, &file);
    assert!(!is_there("first"), "its process is ready, and it is gone");
    let said = down(&world, manager);
    assert!(!is_there("last"), "{said}");
    // One that no caller waits for any more.
    let file = file.replace("first; true", "early; sleep 1000");
    world.file("raddle.toml", file);
    let manager = world.start(["up"]);
    wait_until("it is at it", || !lines(&world, "early").is_empty());
    manager.stop().ok();
    assert!(!is_there("early"));
    assert_eq!(world.processes(), []);
}

#[test]
fn recycles_processes_by_count_and_keeps_the_others() {
    let world = World::new();
    let manager = up(
        &world,
        "[process.a]\nmax_tasks = 2\njitter = 0\n[[process.a.worker]]\nslug = 'a'\n",
    );
    let before = pids(&world, "a");
    let tids = world.submit(&["--queue", "a", "--array", "1-2", "--", "true"]);
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    wait_until("another is there", || {
        let now = pids(&world, "a");
        now.len() == 1 && now != before
    });
    down(&world, manager);
}

/// A task is what it was submitted as. That is said, where it is not what the file says any more.
#[test]
fn reports_events_that_still_run_the_previous_file() {
    let world = World::new();
    let file = |word: &str| {
        format!(
            "[process.mail]\n[[process.mail.worker]]\nslug = 'mail'\nsources = ['orders']\n\
             command = ['sh', '-c', 'echo {word} $(cat) >> done']\n"
        )
    };
    let manager = up(&world, &file("old"));
    world.raddle(["group", "off", "mail"]).ok();
    world.raddle(["queue", "write", "orders", "1", "2"]).ok();
    let waiting = || world.list(&["group", "list"])[0]["waiting"].clone();
    wait_until("two wait", || waiting() == 2);
    // One that was submitted by hand runs what it says, and that is no news.
    let by_hand = world.submit(&["--queue", "mail", "--", "true"]);
    down(&world, manager);
    let manager = up(&world, &file("new"));
    let said = manager.stderr();
    let of_old = r#"slug="mail" tasks=2 runs={"command":["sh","-c","echo old $(cat) >> done"]}"#;
    assert!(
        said.contains("run the old target") && said.contains(of_old),
        "{said}"
    );
    assert_eq!(said.matches("run the old target").count(), 1, "{said}");
    world.raddle(["queue", "write", "orders", "3"]).ok();
    world.raddle(["group", "on", "mail"]).ok();
    wait_until("all are done", || lines(&world, "done").len() == 3);
    assert_eq!(lines(&world, "done"), ["new 3", "old 1", "old 2"]);
    world.raddle(["wait", &by_hand]).ok();
    down(&world, manager);
    let manager = up(&world, &file("new"));
    assert!(!down(&world, manager).contains("run the old target"));
}

/// Tasks end faster than the manager looks: a process counts for itself.
#[test]
fn no_process_begins_more_tasks_than_max_tasks() {
    let world = World::new();
    // All of them wait when it begins.
    let tids = world.submit(&["--queue", "a", "--array", "1-40", "--", "true"]);
    let file = "[process.a]\nmax_tasks = 3\njitter = 0.5\nrestart = 'never'\nconcurrency = 4\n[[process.a.worker]]\nslug = 'a'\n";
    let manager = up(&world, file);
    world.raddle(["wait"].into_iter().chain(tids.lines())).ok();
    let mut of_worker = std::collections::BTreeMap::<String, u32>::new();
    for tid in tids.lines() {
        *of_worker
            .entry(world.task(tid)["worker"].to_string())
            .or_default() += 1;
    }
    assert!(of_worker.values().all(|tasks| *tasks <= 3), "{of_worker:?}");
    let said = down(&world, manager);
    assert!(
        !said.contains("ended by itself") && !said.contains("processes exit right after"),
        "{said}"
    );
}

#[test]
fn refuses_a_routine_that_no_program_offers() {
    let world = World::new();
    world.file(
        "raddle.toml",
        "[process.a]\n[[process.a.worker]]\nslug = 'a'\nsources = ['in']\nroutine = 'nowhere'\n",
    );
    let said =
        "raddle.toml:5: at 'process.a.worker[0].routine': no program offers the routine 'nowhere'";
    world
        .raddle(["up"])
        .code(2)
        .stderr_contains(said)
        .stderr_contains("./myapp up");
    assert_eq!(
        world.raddle(["group", "list", "--json"]).ok().json(),
        serde_json::json!([]),
        "nothing is left of it"
    );
    let found = world.raddle(["doctor", "--json"]).code(1).json();
    let of_groups = |check: &&Value| check["area"] == "groups" && check["name"] == "routine";
    let checks: Vec<&Value> = found["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(of_groups)
        .collect();
    assert!(
        checks.len() == 1 && checks[0]["detail"].as_str().unwrap().contains(said),
        "{found}"
    );
    assert_eq!(
        (&checks[0]["ok"], &checks[0]["vital"]),
        (&false.into(), &true.into())
    );
    // It is not the file that is at fault where nothing runs a routine.
    world.file("raddle.toml", TWO_OF_ONE);
    let found = world.raddle(["doctor", "--json"]).json();
    assert!(
        !found["checks"]
            .as_array()
            .unwrap()
            .iter()
            .any(|check| check["name"] == "routine"),
        "{found}"
    );
}

#[test]
fn errors_of_a_file_name_the_line() {
    let world = World::new();
    world
        .raddle(["up"])
        .code(2)
        .stderr_contains("there is no raddle.toml in this or a parent directory");
    world.file(
        "raddle.toml",
        "[process.a]\nreplica = 2\n[[process.a.worker]]\nslug = 'a'\n",
    );
    world
        .raddle(["up"])
        .code(2)
        .stderr_contains("raddle.toml:2: at 'process.a.replica': unknown field `replica`");
    world.file(
        "other.toml",
        "[process.a]\nreplicas = 2\n[[process.a.worker]]\nslug = 'a'\ncommand = ['x']\ntrigger = { every = 1 }\n",
    );
    world
        .raddle(["up", "-f", "other.toml"])
        .code(2)
        .stderr_contains("other.toml:2: at 'process.a.replicas': more than one replica is for workers without a trigger");
    world
        .raddle(["up", "-f", "none.toml"])
        .code(2)
        .stderr_contains("none.toml: there is no such file");
    world.file("raddle.toml", TWO_OF_ONE);
    world
        .raddle(["--queue-url", "mem://", "up"])
        .code(2)
        .stderr_contains("mem://");
    world
        .raddle(["group", "list"])
        .code(2)
        .stderr_contains("no broker at");
}
