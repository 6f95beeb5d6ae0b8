//! The comparison with Wool, installed from PyPI into a fresh virtual environment.

use std::{collections::BTreeMap, fs, process::Command};

use crate::{Plan, stats::Requirement, venv::install};

/// Calls of the same shape, with Wool.
const SCRIPT: &str = include_str!("wool.py");

pub(super) fn bench(plan: &Plan, one: f64, many: f64, items: f64) -> Vec<Requirement> {
    let directory = tempfile::tempdir().expect("a directory");
    let python = install(directory.path(), &["wool"]);
    // Wool finds a routine by its module name.
    let script = directory.path().join("wool_bench.py");
    fs::write(&script, SCRIPT).expect("a file");
    let calls = if plan.quick { "100" } else { "500" };
    let output = Command::new(python)
        .arg(&script)
        .arg(calls)
        .output()
        .expect("python starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "Wool failed: {stderr}");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    let wool: BTreeMap<String, f64> = serde_json::from_str(last).expect("it prints JSON");
    wool.iter()
        .for_each(|(name, value)| println!("Wool: {name:<46} {value:>12.2} /s"));
    let ratio_to_wool = |ours: f64, name: &str| ours / wool.get(name).copied().unwrap_or(f64::NAN);
    vec![
        Requirement::at_least(
            "calls one after the other, of Wool",
            ratio_to_wool(one, "sequential"),
            20.0,
        ),
        Requirement::at_least(
            "calls 100 at a time, of Wool",
            ratio_to_wool(many, "concurrent"),
            50.0,
        ),
        Requirement::at_least(
            "items of a stream, of Wool",
            ratio_to_wool(items, "items"),
            1.0,
        ),
    ]
}
