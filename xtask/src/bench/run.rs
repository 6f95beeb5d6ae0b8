//! `raddle run -- true` in an empty directory, beside a bare spawn and a bare fsynced commit.

use std::time::{Duration, Instant};

use crate::{
    Plan,
    floor::{self, Inserts},
    project_dir::ProjectDir,
    stats::{Requirement, median, micros, print_rounds},
};

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let rounds = if plan.quick { 10 } else { 40 };
    let (mut spawn, mut commit, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    let floor_bed = ProjectDir::new();
    let inserts = Inserts::new(
        floor_bed.path(),
        "a row of the usual length, about as long as this",
    );
    for _ in 0..rounds {
        spawn.push(micros(floor::spawns(5, 1)) / 5.0);
        commit.push(micros(inserts.insert(5, 1)) / 5.0);
        ours.push(micros(run_true()));
    }
    println!("bare spawn + wait {:>29.0} us", median(&spawn));
    println!("bare fsynced commit {:>27.0} us", median(&commit));
    let ours = print_rounds("raddle run -- true, in an empty directory", "us", &ours);
    vec![Requirement::at_most(
        "'run -- true' in an empty directory, ms, p50",
        ours / 1000.0,
        10.0,
    )]
}

fn run_true() -> Duration {
    let project = ProjectDir::new();
    let mut command = project.raddle(&["run", "--", "true"]);
    let began = Instant::now();
    let status = command.status().expect("the release binary starts");
    let took = began.elapsed();
    assert!(status.success());
    took
}
