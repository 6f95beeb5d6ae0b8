//! The log of those who go on for long: for people, or as JSON.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor},
};
use serde_json::{Map, Value};

use crate::{
    metrics::said,
    world::{World, wait_until},
};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A line of a log: an object that has each key once. `Value` alone would take the last of two.
struct Line(Value);

impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = Line;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Line, A::Error> {
                let mut object = Map::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if object.contains_key(&key) {
                        return Err(A::Error::custom(format!("the key '{key}' is there twice")));
                    }
                    object.insert(key, value);
                }
                Ok(Line(Value::Object(object)))
            }
        }

        deserializer.deserialize_map(Keys)
    }
}

/// The lines of a log, each of which has to be an object that has each key once.
#[track_caller]
pub(crate) fn read(log: &str) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in: {line}"));
    log.lines().map(line).map(|Line(value)| value).collect()
}

#[test]
fn log_lines_about_a_task_have_its_attempt_and_trace() {
    let world = World::new();
    let flags = [
        "worker",
        "start",
        "--no-detach",
        "--json",
        "-v",
        "--log-format",
        "json",
        "--concurrency",
        "1",
    ];
    let worker = world.start(flags);
    said(&worker);
    let tid = world.submit(&[
        "--traceparent",
        PARENT,
        "--retry",
        "1",
        "--retry-base",
        "0.01",
        "--",
        "false",
    ]);
    let own = world.submit(&["--", "true"]);
    world.raddle(["wait", "--timeout", "30", &tid]).code(1);
    world.raddle(["wait", "--timeout", "30", &own]).ok();
    // One whose runner is killed is an error.
    let killed = world.submit(&["--traceparent", PARENT, "--", "sleep", "600"]);
    world.wait_for_state(&killed, "running");
    let title = format!("raddle-{}", &killed[9..]);
    let runner = || {
        world
            .processes()
            .into_iter()
            .find(|(_, shown)| shown.starts_with(&title))
    };
    wait_until("its runner wears its title", || runner().is_some());
    crate::world::kill(runner().unwrap().0, libc::SIGKILL);
    world.wait_for_state(&killed, "killed");
    let ran = worker.stop().ok();
    let lines = read(&ran.stderr);
    let of = |tid: &str| {
        lines
            .iter()
            .filter(|line| line["tid"] == tid)
            .cloned()
            .collect::<Vec<Value>>()
    };
    for (tid, trace) in [(&tid, Some(TRACE)), (&killed, Some(TRACE)), (&own, None)] {
        let about = of(tid);
        assert!(about.len() >= 2, "{about:?}");
        for line in &about {
            assert!(
                line["attempt"].is_u64()
                    && line["level"].is_string()
                    && line["message"].is_string(),
                "{line}"
            );
            assert!(
                line["trace"]
                    .as_str()
                    .is_some_and(|id| id.len() == 32 && trace.is_none_or(|trace| id == trace)),
                "{line}"
            );
        }
    }
    let messages: Vec<String> = of(&tid)
        .iter()
        .map(|line| format!("{} {}", line["attempt"], line["message"]))
        .collect();
    assert_eq!(
        messages,
        [
            "1 \"an attempt begins\"",
            &format!("1 \"an attempt failed: 'raddle logs {tid}' shows its output\""),
            "1 \"an attempt is over, and another follows\"",
            "2 \"an attempt begins\"",
            &format!("2 \"an attempt failed: 'raddle logs {tid}' shows its output\""),
            "2 \"a task is finished\""
        ]
    );
    assert!(
        of(&killed).iter().any(|line| line["level"] == "ERROR"),
        "{:?}",
        of(&killed)
    );
    assert!(
        lines
            .iter()
            .any(|line| line["message"].as_str().unwrap().starts_with("stopping:")),
        "the text for users is logged too"
    );
}

#[test]
fn the_environment_selects_json_logs_of_worker_and_spawner() {
    let world = World::new();
    let ran = world.bash(
        "export RADDLE_LOG_FORMAT=json
         tid=$(raddle worker start -v)
         raddle run --no-inline -- true
         raddle worker stop --all >/dev/null
         cat .raddle/worker-$tid.log
         raddle worker start --log-format xml 2>&1 >/dev/null | grep -c 'possible values: text, json'",
    );
    let ran = ran.ok();
    let mut lines = ran.lines();
    assert_eq!(lines.pop(), Some("1"));
    assert!(
        read(&lines.join("\n"))
            .iter()
            .any(|line| line["message"] == "a task is finished"),
        "{lines:?}"
    );

    let spawner = world.start_bash(
        "RADDLE_LOG_FORMAT=json exec raddle -v spawner run --warm-pool 1 --max-workers 2 --json",
    );
    said(&spawner);
    let tid = world.submit(&["--traceparent", PARENT, "--", "true"]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    let lines = read(&spawner.stop().ok().stderr);
    assert!(
        lines
            .iter()
            .any(|line| line["tid"] == *tid && line["trace"] == TRACE),
        "{lines:?}"
    );
}

#[test]
fn output_of_a_handler_is_in_the_log_of_its_task() {
    let world = World::new();
    world.file(
        "test.sh",
        "read task; echo to stderr >&2; echo '{\"log\": \"as a word\"}'; echo '{\"result\": 1}'",
    );
    world.file(
        "test.handler.toml",
        "name = 'test'\nprovides = []\ncommand = ['sh', 'test.sh']\n",
    );
    let worker = world.start([
        "worker",
        "start",
        "--no-detach",
        "--json",
        "--handlers",
        ".",
        "--log-format",
        "json",
    ]);
    said(&worker);
    let tid = world.submit(&["--handler", "test"]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    let logs = world.raddle(["logs", "--stderr", &tid]).ok();
    let mut written = logs.lines();
    written.sort_unstable();
    assert_eq!(written, ["as a word", "to stderr"]);
    assert!(
        !worker.stop().ok().stderr.contains("to stderr"),
        "it is the task's, not the worker's"
    );
}
