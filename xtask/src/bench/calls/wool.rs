//! The peer: Wool, from PyPI, in an environment of its own.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{Plan, stats::Verdict};

/// Calls of the same shape as ours, by its own means.
const SCRIPT: &str = include_str!("wool.py");

pub(super) fn bench(plan: &Plan, one: f64, many: f64, items: f64) -> Vec<Verdict> {
    let directory = tempfile::tempdir().expect("a directory");
    let python = install(directory.path());
    // Wool finds a routine by the module that it is in.
    let script = directory.path().join("wool_bench.py");
    fs::write(&script, SCRIPT).expect("a file");
    let calls = if plan.quick { "100" } else { "500" };
    let output = Command::new(python)
        .arg(&script)
        .arg(calls)
        .output()
        .expect("python starts");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "Wool failed: {words}");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    let wool: BTreeMap<String, f64> = serde_json::from_str(last).expect("it prints its figures");
    wool.iter()
        .for_each(|(name, value)| println!("Wool: {name:<46} {value:>12.2} /s"));
    let times = |ours: f64, name: &str| ours / wool.get(name).copied().unwrap_or(f64::NAN);
    vec![
        Verdict::at_least(
            "calls one after the other, of Wool",
            times(one, "sequential"),
            20.0,
        ),
        Verdict::at_least(
            "calls 100 at a time, of Wool",
            times(many, "concurrent"),
            50.0,
        ),
        Verdict::at_least("items of a stream, of Wool", times(items, "items"), 1.0),
    ]
}

/// Makes an environment with Wool in it. Returns its Python.
fn install(directory: &Path) -> PathBuf {
    let run = |program: &Path, args: &[&str]| {
        let status = Command::new(program)
            .args(args)
            .stdout(std::process::Stdio::null())
            .status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "{} {args:?}",
            program.display()
        );
    };
    let venv = directory.join("venv");
    run(
        Path::new("python3"),
        &["-m", "venv", &venv.to_string_lossy()],
    );
    let python = venv.join("bin/python");
    run(&python, &["-m", "pip", "install", "--quiet", "wool"]);
    python
}
