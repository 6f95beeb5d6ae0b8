//! One-shot workers in containers from a warm pool, against one-shot workers that are processes.

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{
    Engine,
    engine_project::{EngineProject, app},
};
use crate::{
    Plan,
    stats::{Requirement, median, micros, print_rounds, ratio},
};

const IMAGE: &str = "raddle-bench";
const BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/docker/build.sh");
/// The size of the warm pool: a worker that is taken is replaced before the next task.
const WARM: usize = 2;
const POOL: [&str; 2] = ["--warm-pool", "2"];
const CONTAINERS: [&str; 4] = ["--launcher", "docker", "--worker-image", IMAGE];

/// The image, removed on drop.
struct Image;

impl Image {
    fn build() -> Self {
        let built = Command::new(BUILD)
            .arg(app())
            .arg(IMAGE)
            .stdout(Stdio::null())
            .status();
        assert!(
            built.is_ok_and(|status| status.success()),
            "the image can be built: is there a Docker engine?"
        );
        Self
    }

    /// The time of `docker run` in microseconds: create, start and remove a container whose program
    /// exits at once.
    fn run() -> f64 {
        let began = Instant::now();
        let ran = Command::new("docker")
            .args(["run", "--rm", "--network", "none", IMAGE])
            .status();
        assert!(
            ran.is_ok_and(|status| status.success()),
            "a container can be run"
        );
        micros(began.elapsed())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("docker")
            .args(["rmi", IMAGE])
            .stdout(Stdio::null())
            .status();
    }
}

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let samples = if plan.quick { 10 } else { 50 };
    let _image = Image::build();
    let (mut process, mut warm, mut launched, mut run) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        process.push(submit_with_warm_pool(samples, &[]));
        warm.push(submit_with_warm_pool(samples, &CONTAINERS));
        launched.push(submit_without_warm_pool(if plan.quick { 3 } else { 10 }));
        run.push(median(&(0..5).map(|_| Image::run()).collect::<Vec<_>>()));
    }
    print_rounds("submit to user code, warm process, p50", "us", &process);
    print_rounds("submit to user code, warm container, p50", "us", &warm);
    print_rounds(
        "submit to user code, no container is warm, p50",
        "us",
        &launched,
    );
    print_rounds("cold docker run of the program, p50", "us", &run);
    vec![Requirement::at_most(
        "warm container: submit to user code, of a warm process",
        ratio(&warm, &process),
        2.0,
    )]
}

/// One task at a time, each with a full pool.
fn submit_with_warm_pool(samples: usize, flags: &[&str]) -> f64 {
    let project = EngineProject::new(Engine::Sqlite);
    let spawner = project.spawner(&[&POOL, flags].concat());
    let took = project.submit_to_code_after("when", samples, || {
        // The last worker exits and is replaced; a start in progress would compete with the task
        // for the processor.
        thread::sleep(Duration::from_millis(50));
        project.wait_until_warm(WARM);
        thread::sleep(Duration::from_millis(50));
    });
    assert!(spawner.stop(), "the spawner exits with success");
    took
}

/// One task at a time, each of which launches a container.
fn submit_without_warm_pool(samples: usize) -> f64 {
    let project = EngineProject::new(Engine::Sqlite);
    let spawner = project.spawner(&[&["--warm-pool", "0"], &CONTAINERS[..]].concat());
    let took = project.submit_to_code_after("when", samples, || {
        thread::sleep(Duration::from_millis(100))
    });
    assert!(spawner.stop(), "the spawner exits with success");
    took
}
