//! Traces: from the submitter of a task to what it runs.

use serde_json::json;

use crate::world::World;

pub(crate) const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
pub(crate) const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Trace, span and flags.
pub(crate) fn parts(parent: &str) -> (&str, &str, &str) {
    let parts: Vec<&str> = parent.trim().split('-').collect();
    assert_eq!((parts.len(), parts[0]), (4, "00"), "{parent}");
    (parts[1], parts[2], parts[3])
}

#[test]
fn passes_the_trace_context_from_submitter_to_task() {
    let world = World::new();
    let script = format!(
        r#"
# The trace in the worker's environment is not the tasks' trace.
TRACEPARENT=00-00000000000000000000000000000001-0000000000000001-01 TRACESTATE=worker=1 raddle worker start >/dev/null
show='echo $TRACEPARENT; echo $TRACESTATE; test $RADDLE_ATTEMPT = 2'
export TRACEPARENT={PARENT} TRACESTATE=congo=t61
raddle run --retry 1 --retry-base 0.01 -- sh -c "$show"
export TRACEPARENT=garbage
raddle run --retry 1 --retry-base 0.01 -- sh -c "$show"
raddle run --traceparent {PARENT} --retry 1 --retry-base 0.01 -- sh -c "$show"
raddle run --env TRACEPARENT=mine -- sh -c 'echo $TRACEPARENT'
raddle worker stop --all >/dev/null
"#
    );
    let ran = world.bash(&script).ok();
    let lines = ran.lines();
    let (named, own, flagged) = (&lines[0..4], &lines[4..8], &lines[8..12]);
    for of_flag in [named, flagged] {
        let (first, second) = (parts(of_flag[0]), parts(of_flag[2]));
        assert_eq!(
            (first.0, second.0, first.2),
            (TRACE, TRACE, "01"),
            "{of_flag:?}"
        );
        assert!(
            first.1 != second.1 && first.1 != "00f067aa0ba902b7",
            "each attempt is a span of its own: {of_flag:?}"
        );
    }
    assert_eq!((named[1], own[1], flagged[1]), ("congo=t61", "", ""));
    // Without one that can be read it is a trace of its own, and not the worker's.
    assert_eq!(parts(own[0]).0, parts(own[2]).0);
    assert!(parts(own[0]).0 != TRACE && !parts(own[0]).0.starts_with("000000000000"));
    assert_eq!(lines[12], "mine");
    for wrong in [
        "garbage",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
    ] {
        world
            .raddle(["submit", "--traceparent", wrong, "--", "true"])
            .code(2)
            .stderr_contains("is not a traceparent");
    }
    world
        .raddle(["submit", "--tracestate", "a=1", "--", "true"])
        .code(2);
}

#[test]
fn handlers_and_submitted_tasks_inherit_the_trace_context() {
    let world = World::new();
    world.file("test.sh", "read task; echo \"{\\\"result\\\": $task}\"");
    world.file(
        "test.handler.toml",
        "name = 'test'\nprovides = []\ncommand = ['sh', 'test.sh']\n",
    );
    world.worker(&["--handlers", "."]);
    let tid = world.submit(&[
        "--traceparent",
        PARENT,
        "--tracestate",
        "a=1",
        "--handler",
        "test",
    ]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    let told = world.task(&tid)["report"]["value"].clone();
    assert_eq!(
        (
            parts(told["traceparent"].as_str().unwrap()).0,
            &told["tracestate"]
        ),
        (TRACE, &json!("a=1"))
    );
    assert_eq!(told["spec"]["traceparent"], PARENT);

    let tid = world.submit(&[
        "--traceparent",
        PARENT,
        "--",
        "sh",
        "-c",
        "echo $TRACEPARENT; raddle submit -- true",
    ]);
    world.raddle(["wait", "--timeout", "30", &tid]).ok();
    let result = world.raddle(["result", &tid]).ok();
    let (own, child) = (result.lines()[0].to_owned(), result.lines()[1].to_owned());
    assert_eq!(world.task(&child)["spec"]["traceparent"], own);
}
