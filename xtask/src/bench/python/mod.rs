//! Programs in Python: calls, streams and tasks over the companion, and beside it rivals from PyPI
//! in the same run.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    Plan,
    project_dir::{ProjectDir, binary},
    stats::{Requirement, print_rounds},
};

const CLIENT: &str = include_str!("client.py");
const ROUTINES: &str = include_str!("bench_routines.py");
const RAY: &str = include_str!("ray_calls.py");
const WOOL: &str = include_str!("../calls/wool.py");

/// The figures of one run, by name.
type Figures = BTreeMap<String, f64>;

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let project = ProjectDir::new();
    let python =
        create_venv(project.path(), "venv", &["msgspec"]).expect("msgspec can be installed");
    fs::write(project.path().join("bench_routines.py"), ROUTINES).expect("a file");
    let amount = if plan.quick { 300 } else { 2000 };
    let runs: Vec<Figures> = (0..plan.rounds)
        .map(|_| run(&project, &python, "client.py", CLIENT, amount).expect("the client runs"))
        .collect();
    let figure = |name: &str, unit: &str| {
        let rounds: Vec<f64> = runs.iter().map(|run| run[name]).collect();
        print_rounds(name, unit, &rounds)
    };
    let [one, many, items] = ["sequential", "concurrent", "items"].map(|name| figure(name, "/s"));
    figure("sync", "/s");
    figure("submit_many", "/s");
    figure("submit_ms", "ms");
    let (start, bare) = (figure("start_ms", "ms"), figure("python_ms", "ms"));
    figure("companion_rss_mib", "MiB");
    let mut requirements = vec![
        Requirement::at_least("python: items of a stream, per second", items, 50_000.0),
        Requirement::at_most(
            "python: private memory of the companion, MiB",
            figure("companion_mib", "MiB"),
            12.0,
        ),
        Requirement::at_most(
            "python: import above that of asyncio, ms",
            figure("import_ms", "ms"),
            25.0,
        ),
        Requirement::at_most(
            "python: start of a pool of one, of 'python -c pass'",
            start / bare,
            2.5,
        ),
    ];
    if plan.with_peers {
        let rivals = [("wool", WOOL, 20.0, 100.0), ("ray", RAY, 3.0, 20.0)];
        for (rival, script, least_one, least_many) in rivals {
            let calls = if plan.quick { 100 } else { 500 };
            let found = create_venv(project.path(), rival, &[rival]).and_then(|python| {
                run(
                    &project,
                    &python,
                    &format!("{rival}_calls.py"),
                    script,
                    calls,
                )
            });
            let Some(found) = found else {
                println!("{rival} cannot be installed or does not run here: not compared");
                continue;
            };
            println!("{rival}: {found:?}");
            requirements.push(Requirement::at_least(
                if rival == "wool" {
                    "python: calls one by one, of Wool"
                } else {
                    "python: calls one by one, of a Ray actor"
                },
                one / found["sequential"],
                least_one,
            ));
            requirements.push(Requirement::at_least(
                if rival == "wool" {
                    "python: calls 100 at a time, of Wool"
                } else {
                    "python: calls 100 at a time, of a Ray actor"
                },
                many / found["concurrent"],
                least_many,
            ));
        }
    }
    requirements
}

/// Runs a script, which prints figures as JSON.
fn run(
    project: &ProjectDir,
    python: &Path,
    name: &str,
    script: &str,
    amount: u32,
) -> Option<Figures> {
    let path = project.path().join(name);
    fs::write(&path, script).expect("a file");
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/src");
    let output = Command::new(python)
        .arg(&path)
        .arg(amount.to_string())
        .current_dir(project.path())
        .env("PYTHONPATH", package)
        .env("RADDLE_BINARY", binary())
        .env_remove("QUEUE_URL")
        .output()
        .expect("python starts");
    if !output.status.success() {
        println!("{name}: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last()?).ok()
}

/// Creates a virtual environment with these packages. Returns its Python, or `None` if they cannot
/// be installed.
fn create_venv(directory: &Path, name: &str, packages: &[&str]) -> Option<PathBuf> {
    let venv = directory.join(name);
    let succeeds = |command: &mut Command| command.output().is_ok_and(|done| done.status.success());
    let python = venv.join("bin/python");
    let is_made = succeeds(Command::new("python3").args(["-m", "venv"]).arg(&venv))
        && succeeds(
            Command::new(&python)
                .args(["-m", "pip", "install", "--quiet"])
                .args(packages),
        );
    is_made.then_some(python)
}
