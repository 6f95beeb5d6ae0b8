//! A pool that sizes itself, under tasks that come by chance.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use raddle_model::Tid;

use super::{Engine, Site, site::call};
use crate::{
    Plan,
    stats::{Verdict, rate},
};

/// Until the pool has seen the rate.
const WARM_UP: Duration = Duration::from_secs(3);

/// The share of tasks that found an idle worker, at half of what the pool can do.
pub(super) fn hits(plan: &Plan, engine: Engine) -> Verdict {
    let (probe, length) = if plan.quick {
        (500, Duration::from_secs(3))
    } else {
        (2000, Duration::from_secs(15))
    };
    let site = Site::new(engine);
    let spawner = site.spawner(&["--warm-pool", "auto", "--max-workers", "64"]);
    let began = Instant::now();
    site.run_all(probe);
    let half = rate(probe, began.elapsed()) / 2.0;
    poisson(&site, half, WARM_UP);
    let tids = poisson(&site, half, length);
    let claims = site.claims();
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
    Verdict::at_least(what, share, 0.99)
}

/// Submits by chance, so many a second on average, and waits until all have ended. No submit waits for the one before.
fn poisson(site: &Site, rate: f64, length: Duration) -> Vec<Tid> {
    let began = Instant::now();
    let tids = site.bed.wait(async {
        let (mut chance, mut due, mut under_way) = (Chance(0x9e37_79b9_7f4a_7c15), 0.0, Vec::new());
        loop {
            due += -chance.next().ln() / rate;
            let at = Duration::from_secs_f64(due);
            if at > length {
                break;
            }
            tokio::time::sleep(at.saturating_sub(began.elapsed())).await;
            let broker = Arc::clone(&site.broker);
            under_way.push(tokio::spawn(async move {
                broker.submit(vec![call("nothing")]).await
            }));
        }
        let mut tids = Vec::new();
        for submit in under_way {
            let stored = submit
                .await
                .expect("it does not panic")
                .expect("a task can be submitted");
            tids.push(stored[0].tid());
        }
        tids
    });
    while site
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

/// The same numbers each time.
struct Chance(u64);

impl Chance {
    /// Above zero, and at most one.
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}
