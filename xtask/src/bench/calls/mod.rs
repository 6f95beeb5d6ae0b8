//! Calls, against a bare tonic echo between as many processes, and against Wool with `--peers`.

mod wool;

use std::{collections::BTreeMap, process::Command};

use crate::{
    Plan, floor,
    project_dir::beside,
    stats::{Requirement, median, micros, print_rounds, ratio},
};

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let calls = if plan.quick { 1000 } else { 5000 };
    let mut rounds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut spawns = Vec::new();
    for _ in 0..plan.rounds {
        spawns.push(micros(floor::spawns(20, 1)) / 20.0 / 1e3);
        for (name, value) in run_round(calls) {
            rounds.entry(name).or_default().push(value);
        }
    }
    print_rounds("bare posix_spawn + wait of /bin/true", "ms", &spawns);
    for (name, values) in &rounds {
        let (what, unit) = name.rsplit_once(", ").unwrap_or((name, ""));
        print_rounds(what, unit, values);
    }
    let figures = |name: &str| rounds.get(name).map(Vec::as_slice).unwrap_or_default();
    let (one, many) = (
        figures("calls, one after the other, /s"),
        figures("calls, 100 at a time, /s"),
    );
    let mut requirements = vec![
        Requirement::at_least(
            "calls one after the other, of a bare tonic echo",
            ratio(one, figures("floor, one after the other, /s")),
            1.5,
        ),
        Requirement::at_most(
            "calls one after the other, p99 of p50",
            ratio(figures("calls p99, us"), figures("calls p50, us")),
            4.0,
        ),
        Requirement::at_least(
            "calls 100 at a time, of a bare tonic echo",
            ratio(many, figures("floor, 100 at a time, /s")),
            2.0,
        ),
        Requirement::at_least(
            "items of a stream, a second",
            median(figures("items of a stream, /s")),
            200_000.0,
        ),
        Requirement::at_most(
            "a nested call, of a plain one",
            ratio(one, figures("nested calls, /s")),
            2.5,
        ),
        Requirement::at_most(
            "a call over mutual TLS, of one over plain TCP",
            ratio(
                figures("calls over TCP, one after the other, /s"),
                figures("calls over mutual TLS, one after the other, /s"),
            ),
            1.5,
        ),
        Requirement::at_least(
            "1 MiB echo, of a bare tonic echo",
            ratio(
                figures("calls, 1 MiB echo, /s"),
                figures("floor, 1 MiB echo, /s"),
            ),
            0.6,
        ),
        Requirement::at_most(
            "pool of 2 ready, in bare spawns",
            ratio(figures("pool of 2 ready, ms"), &spawns),
            10.0,
        ),
        Requirement::at_most(
            "idle worker of a pool, MB (PSS)",
            median(figures("idle worker, MB (PSS)")),
            8.0,
        ),
        Requirement::at_most(
            "idle pool exit, ms",
            median(figures("idle pool exit, ms")),
            100.0,
        ),
    ];
    if plan.with_peers {
        requirements.extend(wool::bench(
            plan,
            median(one),
            median(many),
            median(figures("items of a stream, /s")),
        ));
    }
    requirements
}

/// One round, in a fresh process.
fn run_round(calls: usize) -> BTreeMap<String, f64> {
    let output = Command::new(beside("raddle-bench-calls"))
        .args(["round", &calls.to_string()])
        .output();
    let output = output.expect("raddle-bench-calls starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "a round of calls failed: {stderr}");
    serde_json::from_slice(&output.stdout).expect("a round prints its figures")
}
