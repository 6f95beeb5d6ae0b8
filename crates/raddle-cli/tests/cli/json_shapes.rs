//! Which keys commands write with `--json`, and of what types: scripts are written against them, so
//! one that is renamed or gone must be seen here.
//!
//! The values are checked by the tests of each command. A command with its own `json_*.snap`, which
//! shows the values too, is not asked for again.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use self::Form::{First, Lines, One};
use crate::{
    shape::snapshot,
    world::{World, wait_until},
};

/// A command, what it writes, and the code it leaves with. In the command, words in capitals stand
/// for the ids of tasks.
type Row = (&'static str, Form, i32);

#[derive(Clone, Copy)]
enum Form {
    /// One value.
    One,
    /// One value a line: how many is not promised.
    Lines,
    /// The same from a command that goes on until it is interrupted, of which the first line is
    /// enough.
    First,
}

/// With no worker, until the last of them starts one.
const ALONE: &[Row] = &[
    // No worker can run the waiting task, so that on any machine there is a finding with something
    // to do about it, and one without.
    ("doctor", One, 0),
    ("submit --queue aside --array 1-2 -- true", Lines, 0),
    ("batch list", One, 0),
    ("batch status", One, 0),
    ("batch cancel", One, 0),
    ("batch wait --timeout 30 last", One, 1),
    ("batch retry-failed", One, 0),
    ("batch delete", One, 0),
    ("run --no-wait --queue aside -- true", One, 0),
    ("status --watch", First, 130),
    ("tid WAITING", One, 0),
    ("task status WAITING", One, 0),
    ("task status FAILED", One, 0),
    ("result FAILED", One, 3),
    ("logs FAILED", Lines, 0),
    ("logs -f FAILED", Lines, 0),
    ("wait --timeout 30 FAILED", One, 1),
    // The second time, its key is taken by what came of the first.
    ("task retry FAILED FAILED", One, 2),
    ("task stop WAITING", One, 0),
    // It has never begun, so that its report says less.
    ("result WAITING", One, 130),
    ("task recover WAITING", One, 0),
    ("task delete WAITING", One, 0),
    ("task clean", One, 0),
    ("queue list jobs", One, 0),
    ("queue peek jobs", One, 0),
    ("queue watch jobs --limit 1 --timeout 30", Lines, 0),
    ("queue move jobs later", One, 0),
    ("queue read later", One, 0),
    ("queue pause idle", One, 0),
    ("queue resume idle", One, 0),
    ("operation list", One, 0),
    (
        "schedule add seldom --every 1h --queue aside -- true",
        One,
        0,
    ),
    (
        "schedule add daily --cron @daily --timezone UTC --lifetime 1m --jitter 1s -- true",
        One,
        0,
    ),
    ("schedule list", One, 0),
    ("schedule show seldom", One, 0),
    ("schedule pause seldom daily", Lines, 0),
    ("schedule resume seldom daily", Lines, 0),
    ("schedule run-now seldom", Lines, 0),
    ("schedule remove seldom daily", Lines, 0),
    ("worker start --concurrency 1", One, 0),
];

/// With a task that runs: it is its worker that answers.
const AT_WORK: &[Row] = &[
    ("task status RUNNING", One, 0),
    ("task ping RUNNING --timeout 30", One, 0),
    ("task pause RUNNING --timeout 30", One, 0),
    ("task resume RUNNING --timeout 30", One, 0),
    ("task stop RUNNING --timeout 30", One, 0),
];

/// With the file `tasks.toml`.
const MANAGERS: &[Row] = &[
    ("manager start", One, 0),
    ("worker spawn --type unix --registry tasks.toml", One, 0),
    ("manager list", One, 0),
    ("manager status", One, 0),
    ("manager stop --all --timeout 30", One, 0),
    ("manager serve", First, 0),
];

/// With a group that is up.
const GROUP: &[Row] = &[
    ("group list", One, 0),
    ("group off mail", One, 0),
    ("group on mail", One, 0),
    ("group scale mail 1", One, 0),
];

/// Without a manager.
const LEFT: &[Row] = &[("group list", One, 0), ("group forget mail", One, 0)];

#[test]
fn keys_keep_their_names_and_types() {
    let world = World::new();
    let waiting = world.submit(&["--queue", "aside", "--", "true"]);
    let fails = [
        "--unique-key",
        "k",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; exit 3",
    ];
    let failed = world
        .raddle([&["run", "--json"], &fails[..]].concat())
        .code(3)
        .json();
    world.raddle(["queue", "write", "jobs", "message"]).ok();
    let ids = [
        ("WAITING", waiting.as_str()),
        ("FAILED", failed["tid"].as_str().unwrap()),
    ];
    let mut shapes = shapes_of(&world, ALONE, &ids);
    let running = world.submit(&["--", "sleep", "600"]);
    world.wait_for_state(&running, "running");
    shapes.extend(shapes_of(&world, AT_WORK, &[("RUNNING", &running)]));
    snapshot!("json_shapes", shapes.join("\n\n"));
}

#[test]
fn keys_of_managers_and_groups_keep_their_names_and_types() {
    let world = World::new();
    world.file(
        "tasks.toml",
        "[task.note]\ncommand = ['echo', '{text}']\nparams = { text = 'string' }\n",
    );
    let mut shapes = shapes_of(&world, MANAGERS, &[]);
    let worker = "slug = 'mail'\nsources = ['letters']\ncommand = ['true']\n";
    world.file(
        "raddle.toml",
        format!("[process.mail]\n[[process.mail.worker]]\n{worker}"),
    );
    let up = world.start(["--json", "up"]);
    wait_until("it is up", || up.stderr().contains(" up\n"));
    shapes.extend(shapes_of(&world, GROUP, &[]));
    shapes.push(outlined("up", &[up.stop().ok().json()]));
    shapes.extend(shapes_of(&world, LEFT, &[]));
    snapshot!("json_shapes_keepers", shapes.join("\n\n"));
}

/// Runs these commands, one after the other.
fn shapes_of(world: &World, rows: &[Row], ids: &[(&str, &str)]) -> Vec<String> {
    let id_for = |word| {
        ids.iter()
            .find(|(name, _)| *name == word)
            .map_or(word, |(_, tid)| *tid)
    };
    let shape = |(command, form, code): &Row| {
        // Before the command: what stands behind `--` is the task's.
        let started = world.start(["--json"].into_iter().chain(command.split(' ').map(id_for)));
        if let First = form {
            wait_until("it has written a line", || started.stdout().contains('\n'));
            started.signal(libc::SIGINT);
        }
        let ran = started.finish().code(*code);
        let read = |line: &&str| serde_json::from_str(line).unwrap();
        match form {
            One => outlined(command, &[ran.json()]),
            Lines => outlined(
                &format!("{command}, each line"),
                &ran.lines().iter().map(read).collect::<Vec<_>>(),
            ),
            First => outlined(&format!("{command}, first line"), &[read(&ran.lines()[0])]),
        }
    };
    rows.iter().map(shape).collect()
}

/// A command, and what its values look like.
fn outlined(command: &str, values: &[Value]) -> String {
    let mut lines = Vec::new();
    outline("", &values.iter().collect::<Vec<_>>(), &mut lines);
    format!("{command}{}", lines.join("\n  "))
}

/// The path at which these values were met, with their types, and all paths below it. A key that
/// only some of them have is marked with `?`.
fn outline(path: &str, values: &[&Value], lines: &mut Vec<String>) {
    let types: BTreeSet<&str> = values.iter().map(|value| type_of(value)).collect();
    lines.push(format!(
        "{path}: {}",
        types.into_iter().collect::<Vec<_>>().join(" or ")
    ));
    let objects: Vec<&Map<String, Value>> = values
        .iter()
        .filter_map(|value| value.as_object())
        .collect();
    let keys: BTreeSet<&String> = objects.iter().flat_map(|object| object.keys()).collect();
    for key in keys {
        let met: Vec<&Value> = objects
            .iter()
            .filter_map(|object| object.get(key))
            .collect();
        let mark = if met.len() < objects.len() { "?" } else { "" };
        outline(&format!("{path}.{key}{mark}"), &met, lines);
    }
    let items: Vec<&Value> = values
        .iter()
        .filter_map(|value| value.as_array())
        .flatten()
        .collect();
    if !items.is_empty() {
        outline(&format!("{path}[]"), &items, lines);
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
