//! Schedules: what people do to them, who fires them, and that each due time is fired once.

use std::{collections::BTreeSet, fs, thread, time::Duration};

use serde_json::Value;

use crate::world::{RunningCommand, World, wait_until};

/// How many due times each campaign has.
const DUE: u64 = 1000;
const EVERY: Duration = Duration::from_millis(20);

fn names(world: &World) -> Vec<String> {
    let listed = world.raddle(["schedule", "list", "--json"]).ok().json();
    listed
        .as_array()
        .unwrap()
        .iter()
        .map(|view| view["schedule"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn view(world: &World, name: &str) -> Value {
    world
        .raddle(["schedule", "show", "--json", name])
        .ok()
        .json()
}

#[test]
fn a_paused_schedule_shows_no_due_time() {
    let world = World::new();
    let added = world
        .raddle([
            "--json", "schedule", "add", "d", "--cron", "@daily", "--paused", "--", "true",
        ])
        .ok()
        .json();
    let listed = world.raddle(["--json", "schedule", "list"]).ok().json();
    for shown in [&added, &listed[0], &view(&world, "d")] {
        assert!(
            shown["next"].is_null() && shown["paused"] == true,
            "{shown}"
        );
    }
}

#[test]
fn schedules_are_added_listed_paused_and_removed() {
    let world = World::new();
    world
        .raddle(["schedule", "list"])
        .code(2)
        .stderr_contains("no broker at");
    assert!(
        !world.path().join(".raddle").exists(),
        "looking leaves no trace"
    );
    let add = [
        "schedule",
        "add",
        "backup",
        "--cron",
        "0 3 * * 1-5",
        "--timezone",
        "Europe/Berlin",
        "--missed",
        "skip",
    ];
    let cmd = [
        "--lifetime",
        "10m",
        "--retry",
        "2",
        "--",
        "./backup.sh",
        "--all",
    ];
    let added = world.raddle([&add[..], &cmd].concat()).ok();
    let added = added
        .stderr_contains("schedule 'backup' added, due next at ")
        .stderr_contains("no live process fires schedules");
    assert_eq!(added.text(), "");
    world
        .raddle([&add[..], &cmd].concat())
        .ok()
        .stderr_contains("unchanged");
    world
        .raddle(["schedule", "add", "a", "--every", "1h", "--", "true"])
        .ok();
    assert_eq!(names(&world), ["a", "backup"]);

    let shown = view(&world, "backup");
    assert_eq!(
        shown["schedule"]["task"]["target"]["command"],
        serde_json::json!(["./backup.sh", "--all"])
    );
    assert_eq!(
        (
            shown["schedule"]["lifetime"].as_u64(),
            shown["schedule"]["missed"].as_str()
        ),
        (Some(600), Some("skip"))
    );
    assert_eq!(
        shown["schedule"]["task"]["cwd"].as_str().unwrap(),
        world.path().canonicalize().unwrap().to_str().unwrap()
    );
    assert_eq!(
        (
            shown["upcoming"].as_array().unwrap().len(),
            &shown["upcoming"][0]
        ),
        (5, &shown["next"])
    );
    let text = world
        .raddle(["schedule", "show", "backup", "--count", "2"])
        .ok()
        .text()
        .to_owned();
    assert!(
        text.contains("0 3 * * 1-5 Europe/Berlin")
            && text.lines().filter(|line| line.ends_with(":00Z")).count() == 2,
        "{text}"
    );
    let table = world.raddle(["schedule", "list"]).ok();
    assert!(
        table.lines()[0].starts_with("NAME") && table.lines()[2].contains("skip"),
        "{}",
        table.text()
    );

    world.raddle(["schedule", "pause", "backup"]).ok();
    world
        .raddle(["schedule", "pause", "backup"])
        .ok()
        .stderr_contains("is already paused");
    assert_eq!(view(&world, "backup")["paused"], true);
    assert!(world.raddle(["schedule", "list"]).ok().lines()[2].ends_with("paused"));
    world.raddle(["schedule", "resume", "backup"]).ok();
    assert_eq!(view(&world, "backup")["next"], shown["next"]);

    world
        .raddle(["schedule", "add", "a", "--every", "2h", "--", "true"])
        .code(2)
        .stderr_contains("replace it with --replace");
    world
        .raddle([
            "schedule",
            "add",
            "a",
            "--every",
            "2h",
            "--replace",
            "--",
            "true",
        ])
        .ok()
        .stderr_contains("replaced");
    assert_eq!(view(&world, "a")["schedule"]["every"], 7200);
    world.raddle(["schedule", "remove", "a", "backup"]).ok();
    assert!(names(&world).is_empty());
    assert_eq!(
        world.raddle(["task", "list"]).ok().lines().len(),
        1,
        "nothing was ever due"
    );
}

#[test]
fn a_schedule_is_read_from_a_file() {
    let world = World::new();
    let text = "name = 'backup'\ncron = '@daily'\nmissed = 'all'\n[task]\ntarget.command = ['true']\npriority = 7";
    world.file("backup.toml", text);
    world
        .raddle([
            "schedule",
            "add",
            "--file",
            "backup.toml",
            "--queue",
            "slow",
        ])
        .ok();
    let shown = view(&world, "backup");
    assert_eq!(
        (
            &shown["schedule"]["task"]["priority"],
            &shown["schedule"]["task"]["queue"]
        ),
        (&7.into(), &"slow".into())
    );
    world.file(
        "bad.toml",
        "name = 'x'\nevery = '5s'\ntask.target.comand = ['true']",
    );
    world
        .raddle(["schedule", "add", "--file", "bad.toml"])
        .code(2)
        .stderr_contains("bad.toml is not a schedule, at 'task.target");
    world
        .raddle(["schedule", "add", "--file", "none.toml"])
        .code(2)
        .stderr_contains("cannot read none.toml");
}

#[test]
fn refuses_invalid_schedules() {
    let world = World::new();
    let every = ["--every", "5m"];
    for (args, said) in [
        (
            &["x", "--cron", "61 * * * *", "--", "true"][..],
            "the minute '61' is not a number from 0 to 59",
        ),
        (
            &["x", "--cron", "* * * *", "--", "true"],
            "has 4 fields: write five",
        ),
        (&["x", "--cron", "0 0 30 2 *", "--", "true"], "is never due"),
        (
            &[
                "x",
                "--cron",
                "@daily",
                "--timezone",
                "Europe/Atlantis",
                "--",
                "true",
            ],
            "'Europe/Atlantis' is not a time zone",
        ),
        (
            &["x", "--every", "5m", "--cron", "@daily", "--", "true"],
            "cannot be used with",
        ),
        (&["x", "--", "true"], "--every"),
        (
            &["x", "--every", "1ms", "--", "true"],
            "at 'every': must be at least 10ms",
        ),
        (&["x", "--every", "soon", "--", "true"], "is not a duration"),
        (
            &["x", "--every", "5m", "--timezone", "UTC", "--", "true"],
            "means nothing without cron",
        ),
        (
            &["no blanks", "--every", "5m", "--", "true"],
            "at 'name': must be 1 to 64 letters",
        ),
        (&["x", "--every", "5m"], "required"),
        (
            &["x", "--every", "5m", "--missed", "some", "--", "true"],
            "invalid value 'some'",
        ),
        (
            &["x", "--every", "5m", "--delay", "5s", "--", "true"],
            "at 'task.delay': belongs to the schedule",
        ),
        (
            &["x", "--every", "5m", "--priority", "11", "--", "true"],
            "11 is not in 0..=9",
        ),
        (
            &[
                "x",
                "--every",
                "5m",
                "--jitter",
                "9s",
                "--lifetime",
                "9s",
                "--",
                "true",
            ],
            "at 'jitter': must be shorter",
        ),
    ] {
        world
            .raddle([&["schedule", "add"], args].concat())
            .code(2)
            .stderr_contains(said);
    }
    world
        .raddle([&["schedule", "add", "x"][..], &every, &["--", ""]].concat())
        .code(2)
        .stderr_contains("names no program");
    for command in ["pause", "resume", "run-now", "remove", "show"] {
        world
            .raddle(["schedule", command, "x"])
            .code(2)
            .stderr_contains("there is no schedule 'x'");
    }
    assert!(names(&world).is_empty());
}

#[test]
fn a_resident_worker_fires_and_runs_schedules() {
    let world = World::new();
    world.worker(&["--concurrency", "1"]);
    let script = "echo $RADDLE_SCHEDULE $RADDLE_DUE >>ran";
    // Added while the worker waits: it is woken.
    world
        .raddle([
            "schedule", "add", "beat", "--every", "200ms", "--", "sh", "-c", script,
        ])
        .ok();
    let ran = || fs::read_to_string(world.path().join("ran")).unwrap_or_default();
    wait_until("it has run", || ran().lines().count() >= 3);
    let tid = world
        .raddle(["schedule", "run-now", "beat"])
        .ok()
        .text()
        .trim()
        .to_owned();
    world.raddle(["schedule", "remove", "beat"]).ok();
    world.wait_for_state(&tid, "completed");
    let task = world.task(&tid);
    assert_eq!(
        (&task["spec"]["name"], &task["spec"]["metadata"]["schedule"]),
        (&"beat".into(), &"beat".into())
    );
    let lines = ran();
    let dues: BTreeSet<&str> = lines
        .lines()
        .map(|line| line.strip_prefix("beat ").unwrap())
        .collect();
    assert_eq!(dues.len(), lines.lines().count(), "{lines}");
    assert!(dues.contains(task["spec"]["metadata"]["due"].as_str().unwrap()));
    wait_until("fired tasks have run", || {
        let waiting = world
            .raddle([
                "task",
                "list",
                "--status",
                "created,spawning,running",
                "--json",
            ])
            .ok()
            .json();
        waiting.as_array().unwrap().is_empty()
    });
    let before = ran().lines().count();
    thread::sleep(Duration::from_millis(500));
    assert_eq!(
        ran().lines().count(),
        before,
        "nothing comes after it was removed"
    );
}

#[test]
fn a_scheduler_is_a_worker_that_takes_no_tasks() {
    let world = World::new();
    let scheduler = world.start(["schedule", "run"]);
    scheduler.tid();
    let tid = scheduler.stdout().trim().to_owned();
    let listed = world.workers();
    assert_eq!(
        (&listed[0]["tid"], &listed[0]["type"]),
        (&tid.as_str().into(), &"scheduler".into())
    );
    world
        .raddle(["schedule", "add", "beat", "--every", "100ms", "--", "true"])
        .ok();
    wait_until("it has fired", || {
        view(&world, "beat")["fired"].as_u64().unwrap() >= 2
    });
    let last = view(&world, "beat")["task"].as_str().unwrap().to_owned();
    assert_eq!(world.task(&last)["state"], "created");
    let other = world.raddle(["run", "--", "echo", "inline"]).ok();
    assert_eq!(
        other.text(),
        "inline\n",
        "no task is left to a worker that takes none"
    );
    world.raddle(["task", "ping", &tid]).ok();
    world.raddle(["worker", "stop", &tid]).ok();
    assert_eq!(scheduler.finish().code, 0);
    let fired = view(&world, "beat")["fired"].as_u64();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(view(&world, "beat")["fired"].as_u64(), fired);
}

#[test]
fn a_spawner_fires_schedules() {
    let world = World::new();
    let spawner = world.start(["spawner", "run", "--warm-pool", "1", "--quiet"]);
    spawner.tid();
    world
        .raddle([
            "schedule",
            "add",
            "beat",
            "--every",
            "200ms",
            "--",
            "sh",
            "-c",
            "echo ran >>ran",
        ])
        .ok();
    let ran = || world.lines("ran").len();
    wait_until("it has run", || ran() >= 2);
    world.raddle(["schedule", "remove", "beat"]).ok();
    spawner.stop().ok();
}

#[test]
fn a_manager_fires_schedules() {
    let world = World::new();
    let prime = world.start(["manager", "serve"]);
    prime.tid();
    let added = world
        .raddle(["schedule", "add", "beat", "--every", "200ms", "--", "true"])
        .ok();
    assert!(
        !added.stderr.contains("no live process"),
        "{}",
        added.stderr
    );
    wait_until("it has fired", || {
        view(&world, "beat")["fired"].as_u64().unwrap() >= 1
    });
    world.raddle(["schedule", "remove", "beat"]).ok();
    prime.stop().ok();
}

#[test]
fn expires_a_task_that_no_worker_takes_in_time() {
    let world = World::new();
    let scheduler = world.start(["schedule", "run"]);
    scheduler.tid();
    let tid = world.submit(&["--lifetime", "200ms", "--", "touch", "ran"]);
    world.wait_for_state(&tid, "cancelled");
    let task = world.task(&tid);
    assert_eq!(
        (&task["report"]["exit"]["kind"], &task["attempt"]),
        (&"expired".into(), &0.into())
    );
    world
        .raddle(["result", &tid])
        .code(124)
        .stderr_contains("expired before a worker took it");
    assert!(
        world
            .raddle(["task", "list"])
            .ok()
            .text()
            .contains("expired before a worker took it")
    );
    let again = world
        .raddle(["task", "retry", &tid])
        .ok()
        .text()
        .trim()
        .to_owned();
    world.wait_for_state(&again, "cancelled");
    // Schedules that are due while no worker runs, too.
    world
        .raddle([
            "schedule",
            "add",
            "beat",
            "--every",
            "100ms",
            "--lifetime",
            "50ms",
            "--",
            "touch",
            "ran",
        ])
        .ok();
    let expired = || {
        world
            .raddle(["task", "list", "--status", "cancelled", "--json"])
            .ok()
            .json()
    };
    wait_until("they expire", || expired().as_array().unwrap().len() >= 5);
    world.raddle(["schedule", "remove", "beat"]).ok();
    scheduler.stop().ok();
    // A worker that comes later runs none of them.
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
    assert!(!world.path().join("ran").exists());
    world
        .raddle(["run", "--lifetime", "5m", "--", "echo", "in time"])
        .ok();
    world
        .raddle([
            "run",
            "--run-before",
            "2020-01-01T00:00:00Z",
            "--",
            "touch",
            "ran",
        ])
        .code(124);
    world
        .raddle(["submit", "--lifetime", "5s", "--delay", "5s", "--", "true"])
        .code(2)
        .stderr_contains("it would never run");
    assert!(!world.path().join("ran").exists());
}

/// Due times while no worker ran are handled by policy.
#[test]
fn the_policy_decides_about_missed_due_times() {
    let world = World::new();
    for missed in ["skip", "one", "all"] {
        world
            .raddle([
                "schedule", "add", missed, "--every", "200ms", "--missed", missed, "--", "true",
            ])
            .ok();
    }
    thread::sleep(Duration::from_millis(2300));
    for missed in ["skip", "one", "all"] {
        world.raddle(["schedule", "pause", missed]).ok();
    }
    // Paused before it was ever fired: no due time is made up for.
    let scheduler = world.start(["schedule", "run"]);
    scheduler.tid();
    thread::sleep(Duration::from_millis(300));
    assert_eq!(view(&world, "all")["fired"], 0);
    world
        .raddle(["schedule", "remove", "skip", "one", "all"])
        .ok();
    scheduler.signal(libc::SIGKILL);
    scheduler.finish();
    for missed in ["skip", "one", "all"] {
        world
            .raddle([
                "schedule", "add", missed, "--every", "1s", "--missed", missed, "--", "true",
            ])
            .ok();
    }
    thread::sleep(Duration::from_millis(4300));
    let scheduler = world.start(["schedule", "run"]);
    wait_until("missed due times are fired", || {
        view(&world, "all")["fired"].as_u64().unwrap() >= 4
    });
    let all = ["skip", "one", "all"].map(|name| view(&world, name));
    scheduler.signal(libc::SIGKILL);
    scheduler.finish();
    let [skip, one, all] = all;
    assert_eq!(
        (&all["missed"], all["fired"].as_u64().unwrap() >= 4),
        (&0.into(), true)
    );
    // The last one is less than a minute old, so that it is kept by all of them; those before are
    // left out.
    for some in [skip, one] {
        let (fired, missed) = (
            some["fired"].as_u64().unwrap(),
            some["missed"].as_u64().unwrap(),
        );
        assert!(fired >= 1 && missed >= 3, "{some}");
    }
}

/// Ten schedulers on one broker, some of which are killed: as many tasks as due times, each run
/// once.
fn campaign(world: &World, url: &str) {
    fn to<'a>(url: &'a str, args: &[&'a str]) -> Vec<&'a str> {
        [&["--queue-url", url], args].concat()
    }
    let ask = |args: &[&str]| world.raddle(to(url, args)).ok();
    let scheduler = || world.start(to(url, &["schedule", "run", "--quiet"]));
    let every = format!("{}ms", EVERY.as_millis());
    let add = [
        "schedule", "add", "tick", "--every", &every, "--missed", "all", "--queue", "ticks",
    ];
    ask(&[&add[..], &["--", "sh", "-c", "echo $RADDLE_DUE >>ran"]].concat());
    // Some of the due times are over when the first scheduler comes, and come in groups; the others
    // one by one.
    thread::sleep(EVERY * 200);
    ask(&["worker", "start", "--queues", "ticks", "--concurrency", "2"]);
    let mut there: Vec<RunningCommand> = (0..10).map(|_| scheduler()).collect();
    let show = || ask(&["schedule", "show", "--json", "tick"]).json();
    let mut killed = 0;
    wait_until("all are fired", || {
        let fired = show()["fired"].as_u64().unwrap();
        // Kill one now and then, in the middle of whatever it does, and start another.
        if fired < DUE && fired / 50 > killed {
            killed = fired / 50;
            let one = there.remove(0);
            one.signal(libc::SIGKILL);
            one.finish();
            there.push(scheduler());
        }
        fired >= DUE
    });
    assert!(killed >= 3, "only {killed} were killed");
    ask(&["schedule", "pause", "tick"]);
    let shown = show();
    let fired = shown["fired"].as_u64().unwrap();
    assert_eq!(shown["missed"], 0);
    there.iter().for_each(|one| one.signal(libc::SIGTERM));
    there.into_iter().for_each(|one| _ = one.finish().ok());
    assert_eq!(
        show()["fired"].as_u64(),
        Some(fired),
        "a paused one is not fired"
    );
    let all = ask(&[
        "task", "list", "--queue", "ticks", "--limit", "100000", "--json",
    ])
    .json();
    let due = |task: &Value| {
        task["spec"]["metadata"]["due"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
    };
    let dues: BTreeSet<jiff::Timestamp> = all.as_array().unwrap().iter().map(due).collect();
    assert_eq!(
        (all.as_array().unwrap().len() as u64, dues.len() as u64),
        (fired, fired),
        "one task for each due time"
    );
    let first = *dues.first().unwrap();
    assert!(
        dues.iter()
            .enumerate()
            .all(|(n, due)| *due == first + EVERY * n as u32),
        "none is left out"
    );
    let ran = || fs::read_to_string(world.path().join("ran")).unwrap_or_default();
    wait_until("all have run", || ran().lines().count() as u64 >= fired);
    let ran = ran();
    let ran: BTreeSet<jiff::Timestamp> = ran.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(ran, dues, "each has run");
    let done = ask(&["status", "--json"]).json();
    assert_eq!(
        done["tasks"]["completed"].as_u64(),
        Some(fired),
        "and once: {done}"
    );
    ask(&["worker", "stop", "--all"]);
}

#[test]
fn ten_schedulers_fire_a_thousand_due_times_once_on_sqlite() {
    let world = World::new();
    let url = format!("sqlite:{}", world.path().join("work.db").display());
    campaign(&world, &url);
}

#[test]
fn ten_schedulers_fire_a_thousand_due_times_once_on_redis() {
    let world = World::new();
    let serve = "exec setpriv --pdeathsig KILL redis-server --port 0 --unixsocket \"$PWD/redis.sock\" --dir \"$PWD\" --appendonly yes --save ''";
    let server = world.start_bash(serve);
    let url = format!(
        "redis+unix:{}?namespace=schedules",
        world.path().join("redis.sock").display()
    );
    wait_until("the server is there", || {
        world.raddle(["--queue-url", &url, "status"]).code == 0
    });
    campaign(&world, &url);
    server.signal(libc::SIGKILL);
    server.finish();
}
