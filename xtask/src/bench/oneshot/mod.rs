//! One-shot workers: a process for each task, out of a warm pool, against bare `posix_spawn` of the same program.

pub(crate) mod docker;
mod load;
mod site;

use std::{
    collections::HashSet,
    thread,
    time::{Duration, Instant},
};

use raddle_model::{TaskState, Tid};

use self::site::{Site, app};
use crate::{
    Plan, floor,
    idle::{cpu_nanos, pss_mb},
    stats::{Verdict, median, micros, rate, ratio, show},
};

/// As many at a time as the machine has cores, for floor and pool alike.
const PARALLEL: usize = 2;
/// A pool that is never empty while tasks wait, and as many workers as it takes to have results written together.
const POOL: [&str; 4] = ["--warm-pool", "8", "--max-workers", "32"];
const SAMPLES: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Redis,
}

pub(crate) fn bench(plan: &Plan) -> Vec<Verdict> {
    let mut verdicts = throughput(plan);
    verdicts.extend([Engine::Sqlite, Engine::Redis].map(|engine| latency(plan, engine)));
    verdicts.extend([Engine::Sqlite, Engine::Redis].map(|engine| load::hits(plan, engine)));
    verdicts.extend([Engine::Sqlite, Engine::Redis].map(|engine| each_its_own(plan, engine)));
    verdicts.extend([Engine::Sqlite, Engine::Redis].map(|engine| survival(plan, engine)));
    verdicts.extend(idle(plan));
    verdicts
}

fn throughput(plan: &Plan) -> Vec<Verdict> {
    let tasks = if plan.quick { 500 } else { 3000 };
    let (mut bare, mut sqlite, mut redis) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        bare.push(rate(tasks, floor::spawns_of(&app(), tasks, PARALLEL)));
        sqlite.push(rate(tasks, sustained(Engine::Sqlite, tasks)));
        redis.push(rate(tasks, sustained(Engine::Redis, tasks)));
    }
    show(
        "bare posix_spawn + wait of the program, 2 at a time",
        "/s",
        &bare,
    );
    show("one-shot routine tasks, SQLite", "/s", &sqlite);
    show("one-shot routine tasks, Redis", "/s", &redis);
    vec![
        Verdict::at_least(
            "one-shot tasks on SQLite, of bare spawns",
            ratio(&sqlite, &bare),
            0.5,
        ),
        Verdict::at_least(
            "one-shot tasks on Redis, of bare spawns",
            ratio(&redis, &bare),
            0.5,
        ),
    ]
}

/// From the first submit to the last durable result, with a pool that is already warm.
fn sustained(engine: Engine, tasks: usize) -> Duration {
    let site = Site::new(engine);
    let spawner = site.spawner(&POOL);
    site.until_warm(8);
    let began = Instant::now();
    site.run_all(tasks);
    let took = began.elapsed();
    drop(spawner);
    took
}

/// From the call of submit to the first instruction of the function, one task at a time.
fn latency(plan: &Plan, engine: Engine) -> Verdict {
    let samples = if plan.quick { 50 } else { SAMPLES };
    let (mut resident, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let site = Site::new(engine);
        let worker = site.worker(&["--concurrency", "2"]);
        resident.push(site.submit_to_code(samples));
        drop(worker);
        let site = Site::new(engine);
        let spawner = site.spawner(&["--warm-pool", "4"]);
        site.until_warm(4);
        warm.push(site.submit_to_code(samples));
        drop(spawner);
    }
    show(
        &format!("submit to user code, resident worker, {engine:?}, p50"),
        "us",
        &resident,
    );
    show(
        &format!("submit to user code, warm pool, {engine:?}, p50"),
        "us",
        &warm,
    );
    let what = match engine {
        Engine::Sqlite => "warm hit on SQLite: submit to user code, of a resident worker",
        Engine::Redis => "warm hit on Redis: submit to user code, of a resident worker",
    };
    Verdict::at_most(what, ratio(&warm, &resident), 1.5)
}

/// As many processes are made and gone as there are tasks, and nothing is left.
fn each_its_own(plan: &Plan, engine: Engine) -> Verdict {
    let tasks = if plan.quick { 1000 } else { 10_000 };
    let site = Site::new(engine);
    let spawner = site.spawner(&POOL);
    let tids = site.run_all(tasks);
    let workers: HashSet<Tid> = tids
        .iter()
        .filter_map(|tid| site.task(*tid).worker)
        .collect();
    let left = site.summary();
    assert!(
        left.ready.is_empty() && left.delayed == 0 && left.dead == 0,
        "the queue is empty: {left:?}"
    );
    assert_eq!(
        left.states.get(&TaskState::Completed),
        Some(&(tasks as u64))
    );
    assert!(spawner.stop(), "the spawner leaves as it should");
    site.assert_nobody_is_left();
    println!(
        "{engine:?}: {} workers for {tasks} tasks, queue empty, no process left",
        workers.len()
    );
    let what = match engine {
        Engine::Sqlite => "workers made and gone on SQLite, of tasks",
        Engine::Redis => "workers made and gone on Redis, of tasks",
    };
    Verdict::at_least(what, workers.len() as f64 / tasks as f64, 1.0)
}

/// How many tasks come to their end when their spawner is killed in the middle of them, and another takes its place.
fn survival(plan: &Plan, engine: Engine) -> Verdict {
    let tasks = if plan.quick { 1000 } else { 5000 };
    let site = Site::new(engine);
    let first = site.spawner(&POOL);
    let tids = site.submit(tasks);
    site.until_completed(tasks / 2);
    first.kill();
    let next = site.spawner(&POOL);
    site.until_completed(tasks);
    let again = tids
        .iter()
        .filter(|tid| site.task(**tid).attempt > 1)
        .count();
    assert!(next.stop(), "the spawner leaves as it should");
    println!(
        "{engine:?}: a spawner killed among {tasks} tasks: all completed, {again} with a second attempt"
    );
    let completed = site
        .summary()
        .states
        .get(&TaskState::Completed)
        .copied()
        .unwrap_or_default();
    let what = match engine {
        Engine::Sqlite => "tasks completed though their spawner was killed, SQLite",
        Engine::Redis => "tasks completed though their spawner was killed, Redis",
    };
    Verdict::at_least(what, completed as f64 / tasks as f64, 1.0)
}

/// What a pool costs that nobody needs.
fn idle(plan: &Plan) -> Vec<Verdict> {
    let seconds = if plan.quick { 5 } else { 30 };
    let mut pss = (Vec::new(), Vec::new());
    let mut percents = Vec::new();
    for engine in [Engine::Sqlite, Engine::Redis] {
        let site = Site::new(engine);
        let spawner = site.spawner(&["--warm-pool", "4"]);
        site.until_warm(4);
        // So that what is made on first use has been made.
        site.run_all(20);
        site.until_warm(4);
        thread::sleep(Duration::from_secs(1));
        let before = cpu_nanos(spawner.pid());
        thread::sleep(Duration::from_secs(seconds));
        let millis = cpu_nanos(spawner.pid()).saturating_sub(before) as f64 / 1e6;
        percents.push(millis / (seconds as f64 * 1e3) * 100.0);
        pss.0.push(pss_mb(spawner.pid()));
        pss.1.extend(site.workers().iter().map(|pid| pss_mb(*pid)));
        println!(
            "{engine:?}: idle spawner {:.1} MB, {millis:.1} ms of CPU in {seconds} s",
            pss.0[pss.0.len() - 1]
        );
    }
    println!("idle one-shot workers: {:.1} MB (PSS)", median(&pss.1));
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    vec![
        Verdict::at_most("idle one-shot worker, MB (PSS)", most(&pss.1), 6.0),
        Verdict::at_most("idle spawner, MB (PSS)", most(&pss.0), 10.0),
        Verdict::at_most("idle spawner, % of a core", most(&percents), 0.5),
    ]
}

/// The median, in microseconds.
fn p50(times: &[Duration]) -> f64 {
    median(&times.iter().copied().map(micros).collect::<Vec<_>>())
}
