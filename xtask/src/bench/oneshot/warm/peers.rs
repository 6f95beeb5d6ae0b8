//! The same tasks in Celery, Dramatiq, taskiq and RQ, from PyPI, on the same Redis server.

use std::{fs, path::Path, process::Command};

use super::{
    super::{Engine, engine_project::EngineProject},
    run_noops,
};
use crate::{
    Plan,
    stats::{Requirement, print_rounds, ratio},
    venv::install,
};

/// The tasks of each peer, and how to run them.
const SCRIPT: &str = include_str!("peers.py");
const PACKAGES: [&str; 5] = [
    "celery[redis]",
    "dramatiq[redis]",
    "taskiq",
    "taskiq-redis",
    "rq",
];
/// Each peer with a number of tasks that takes it some seconds.
const PEERS: [(&str, usize); 4] = [
    ("celery", 5_000),
    ("dramatiq", 20_000),
    ("taskiq", 20_000),
    ("rq", 200),
];

pub(super) fn bench(plan: &Plan) -> Vec<Requirement> {
    let directory = tempfile::tempdir().expect("a directory");
    let python = install(directory.path(), &PACKAGES);
    fs::write(directory.path().join("peers.py"), SCRIPT).expect("a file");
    let tasks = if plan.quick { 10_000 } else { 40_000 };
    let mut ours = Vec::new();
    let mut theirs = [const { Vec::new() }; PEERS.len()];
    for _ in 0..plan.rounds {
        let project = EngineProject::new(Engine::Redis);
        let url = project.server.as_ref().map(crate::redis::Server::address);
        let url = url.expect("the engine is Redis");
        ours.push(run_noops(&project, tasks, &[]));
        for ((peer, tasks), rates) in PEERS.iter().zip(&mut theirs) {
            let tasks = if plan.quick { tasks / 5 } else { *tasks };
            rates.push(run_peer(directory.path(), &python, peer, tasks, &url));
        }
    }
    print_rounds("Raddle, two hosts, Redis", "/s", &ours);
    for ((peer, _), rates) in PEERS.iter().zip(&theirs) {
        print_rounds(
            &format!("{peer}, two processes, the same Redis"),
            "/s",
            rates,
        );
    }
    let fastest: Vec<f64> = (0..plan.rounds)
        .map(|round| theirs.iter().map(|rates| rates[round]).fold(0.0, f64::max))
        .collect();
    vec![
        Requirement::at_least(
            "shared tasks, of the fastest Python peer",
            ratio(&ours, &fastest),
            4.0,
        ),
        Requirement::at_least("shared tasks, of Celery", ratio(&ours, &theirs[0]), 15.0),
    ]
}

/// Tasks a second of a peer with two processes.
fn run_peer(directory: &Path, python: &Path, peer: &str, tasks: usize, url: &str) -> f64 {
    let output = Command::new(python)
        .arg("peers.py")
        .current_dir(directory)
        .env("PEER", peer)
        .env("PEER_TASKS", tasks.to_string())
        .env("PEER_REDIS", url)
        .output()
        .expect("python starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{peer} failed: {stderr}");
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    last.parse().expect("it prints a rate")
}
