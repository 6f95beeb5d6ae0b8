//! The specs of tasks that are submitted from a file.

use serde_json::{Value, json};

use crate::{host::ROUTINE, plan::Class};

/// The queue of tasks that hosts run.
pub(crate) const HOSTED_QUEUE: &str = "hosted";

/// A list of specs of commands, as JSON.
pub(crate) fn of_commands(name_prefix: &str, classes: &[Class], program: &str) -> String {
    let specs = classes
        .iter()
        .map(|class| of_command(name_prefix, *class, program));
    Value::Array(specs.collect()).to_string()
}

/// One spec of a command.
pub(crate) fn of_command(name_prefix: &str, class: Class, program: &str) -> Value {
    let mut spec = spec(name_prefix, class);
    spec["target"] = json!({ "command": [program, "task", class.name()] });
    spec
}

/// A list of specs of the routine of the hosts, as JSON.
pub(crate) fn of_hosts(name_prefix: &str, classes: &[Class]) -> String {
    let specs = classes.iter().map(|class| {
        let mut spec = spec(name_prefix, *class);
        spec["target"] = json!({ "routine": ROUTINE });
        spec["args"] = json!([class.name()]);
        spec["queue"] = HOSTED_QUEUE.into();
        spec
    });
    Value::Array(specs.collect()).to_string()
}

/// A spec without a target. A task that always fails gets two attempts.
fn spec(name_prefix: &str, class: Class) -> Value {
    let attempts = if class.always_fails() { 2 } else { 60 };
    json!({
        "name": name_prefix.replace("{}", class.name()),
        "retry": { "attempts": attempts, "backoff": "constant", "base": "50ms" },
    })
}
