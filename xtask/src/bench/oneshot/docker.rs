//! One-shot workers in containers, out of a warm pool, against those that are processes of this machine.

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{
    Engine,
    site::{Site, app},
};
use crate::{
    Plan,
    stats::{Verdict, median, micros, ratio, show},
};

const IMAGE: &str = "raddle-bench";
const BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/docker/build.sh");
/// How many are warm: one that is taken is replaced before the next task comes.
const WARM: usize = 2;
const POOL: [&str; 2] = ["--warm-pool", "2"];
const CONTAINERS: [&str; 4] = ["--launcher", "docker", "--worker-image", IMAGE];

/// The image, gone with the benchmark.
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

    /// From the command to its end, in microseconds: a container is made, started, does nothing, and is removed.
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

pub(crate) fn bench(plan: &Plan) -> Vec<Verdict> {
    let samples = if plan.quick { 10 } else { 50 };
    let _image = Image::build();
    let (mut process, mut warm, mut launched, mut run) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        process.push(hit(samples, &[]));
        warm.push(hit(samples, &CONTAINERS));
        launched.push(miss(if plan.quick { 3 } else { 10 }));
        run.push(median(&(0..5).map(|_| Image::run()).collect::<Vec<_>>()));
    }
    show("submit to user code, warm process, p50", "us", &process);
    show("submit to user code, warm container, p50", "us", &warm);
    show(
        "submit to user code, no container is warm, p50",
        "us",
        &launched,
    );
    show("cold docker run of the program, p50", "us", &run);
    vec![Verdict::at_most(
        "warm container: submit to user code, of a warm process",
        ratio(&warm, &process),
        2.0,
    )]
}

/// One task at a time, each of which finds the pool full.
fn hit(samples: usize, flags: &[&str]) -> f64 {
    let site = Site::new(Engine::Sqlite);
    let spawner = site.spawner(&[&POOL, flags].concat());
    let took = site.submit_to_code_after(samples, || {
        // The last one leaves, and is replaced; a start that is still under way would take the processor from the task.
        thread::sleep(Duration::from_millis(50));
        site.until_warm(WARM);
        thread::sleep(Duration::from_millis(50));
    });
    assert!(spawner.stop(), "the spawner leaves as it should");
    took
}

/// One task at a time, for each of which a container is launched.
fn miss(samples: usize) -> f64 {
    let site = Site::new(Engine::Sqlite);
    let spawner = site.spawner(&[&["--warm-pool", "0"], &CONTAINERS[..]].concat());
    let took = site.submit_to_code_after(samples, || thread::sleep(Duration::from_millis(100)));
    assert!(spawner.stop(), "the spawner leaves as it should");
    took
}
