//! Calls, against a bare tonic echo between the same number of processes, and against Wool where that is asked for.

mod wool;

use std::{collections::BTreeMap, process::Command};

use crate::{
    Plan,
    bed::beside,
    floor,
    stats::{Verdict, median, micros, ratio, show},
};

pub(crate) fn bench(plan: &Plan) -> Vec<Verdict> {
    let calls = if plan.quick { 1000 } else { 5000 };
    let mut rounds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut spawns = Vec::new();
    for _ in 0..plan.rounds {
        spawns.push(micros(floor::spawns(20, 1)) / 20.0 / 1e3);
        for (name, value) in round(calls) {
            rounds.entry(name).or_default().push(value);
        }
    }
    show("bare posix_spawn + wait of /bin/true", "ms", &spawns);
    for (name, values) in &rounds {
        let (what, unit) = name.rsplit_once(", ").unwrap_or((name, ""));
        show(what, unit, values);
    }
    let of = |name: &str| rounds.get(name).map(Vec::as_slice).unwrap_or_default();
    let (one, many) = (
        of("calls, one after the other, /s"),
        of("calls, 100 at a time, /s"),
    );
    let mut verdicts = vec![
        Verdict::at_least(
            "calls one after the other, of a bare tonic echo",
            ratio(one, of("floor, one after the other, /s")),
            1.5,
        ),
        Verdict::at_most(
            "calls one after the other, p99 of p50",
            ratio(of("calls p99, us"), of("calls p50, us")),
            4.0,
        ),
        Verdict::at_least(
            "calls 100 at a time, of a bare tonic echo",
            ratio(many, of("floor, 100 at a time, /s")),
            2.0,
        ),
        Verdict::at_least(
            "items of a stream, a second",
            median(of("items of a stream, /s")),
            200_000.0,
        ),
        Verdict::at_most(
            "a nested call, of a plain one",
            ratio(one, of("nested calls, /s")),
            2.5,
        ),
        Verdict::at_most(
            "a call over mutual TLS, of one over plain TCP",
            ratio(
                of("calls over TCP, one after the other, /s"),
                of("calls over mutual TLS, one after the other, /s"),
            ),
            1.5,
        ),
        Verdict::at_least(
            "1 MiB echo, of a bare tonic echo",
            ratio(of("calls, 1 MiB echo, /s"), of("floor, 1 MiB echo, /s")),
            0.6,
        ),
        Verdict::at_most(
            "pool of 2 ready, in bare spawns",
            ratio(of("pool of 2 ready, ms"), &spawns),
            10.0,
        ),
        Verdict::at_most(
            "idle worker of a pool, MB (PSS)",
            median(of("idle worker, MB (PSS)")),
            8.0,
        ),
        Verdict::at_most(
            "idle pool exit, ms",
            median(of("idle pool exit, ms")),
            100.0,
        ),
    ];
    if plan.peers {
        verdicts.extend(wool::bench(
            plan,
            median(one),
            median(many),
            median(of("items of a stream, /s")),
        ));
    }
    verdicts
}

/// One round, in a process of its own.
fn round(calls: usize) -> BTreeMap<String, f64> {
    let output = Command::new(beside("raddle-bench-calls"))
        .args(["round", &calls.to_string()])
        .output();
    let output = output.expect("the program of the calls starts");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "a round of calls failed: {words}");
    serde_json::from_slice(&output.stdout).expect("a round prints its figures")
}
