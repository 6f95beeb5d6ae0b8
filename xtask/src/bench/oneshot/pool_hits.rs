//! A pool that sizes itself, with Poisson arrivals.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use raddle_model::Tid;

use super::{Engine, EngineProject, engine_project::call};
use crate::{
    Plan,
    stats::{Requirement, rate},
};

/// How long the pool observes the rate first.
const WARM_UP: Duration = Duration::from_secs(3);

/// The share of tasks that found an idle worker, at half the capacity of the pool.
pub(super) fn bench_hits(plan: &Plan, engine: Engine) -> Requirement {
    let (probe, length) = if plan.quick {
        (500, Duration::from_secs(3))
    } else {
        (2000, Duration::from_secs(15))
    };
    let project = EngineProject::new(engine);
    let spawner = project.spawner(&["--warm-pool", "auto", "--max-workers", "64"]);
    let began = Instant::now();
    project.run_all(probe);
    let half = rate(probe, began.elapsed()) / 2.0;
    poisson(&project, half, WARM_UP);
    let tids = poisson(&project, half, length);
    let claims = project.claims();
    let found = tids
        .iter()
        .filter(|tid| claims.iter().any(|claim| claim.waited_at(**tid)))
        .count();
    drop(spawner);
    let share = found as f64 / tids.len() as f64;
    println!(
        "{engine:?}: {} tasks at {half:.0}/s, {} found an idle worker",
        tids.len(),
        found
    );
    let what = match engine {
        Engine::Sqlite => "tasks that found an idle worker on SQLite, auto, half load",
        Engine::Redis => "tasks that found an idle worker on Redis, auto, half load",
    };
    Requirement::at_least(what, share, 0.99)
}

/// Submits tasks with exponential pauses at this average rate, and waits until all have ended.
/// Submits do not wait for each other.
fn poisson(project: &EngineProject, rate: f64, length: Duration) -> Vec<Tid> {
    let began = Instant::now();
    let tids = project.dir.wait(async {
        let (mut random, mut due, mut in_flight) =
            (Xorshift(0x9e37_79b9_7f4a_7c15), 0.0, Vec::new());
        loop {
            due += -random.next().ln() / rate;
            let at = Duration::from_secs_f64(due);
            if at > length {
                break;
            }
            tokio::time::sleep(at.saturating_sub(began.elapsed())).await;
            let broker = Arc::clone(&project.broker);
            in_flight.push(tokio::spawn(async move {
                broker.submit(vec![call("nothing")]).await
            }));
        }
        let mut tids = Vec::new();
        for submit in in_flight {
            let stored = submit
                .await
                .expect("it does not panic")
                .expect("a task can be submitted");
            tids.push(stored[0].tid());
        }
        tids
    });
    while project
        .summary()
        .states
        .iter()
        .any(|(state, count)| !state.is_terminal() && *count > 0)
    {
        assert!(
            began.elapsed() < length + Duration::from_secs(60),
            "the tasks are finished in time"
        );
        thread::sleep(Duration::from_millis(5));
    }
    tids
}

/// A xorshift generator with a fixed seed.
struct Xorshift(u64);

impl Xorshift {
    /// A number in (0, 1].
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}
