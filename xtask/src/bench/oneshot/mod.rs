//! One-shot workers: a process per task from a warm pool, against bare `posix_spawn` of the same
//! program.

pub(crate) mod docker;
mod engine_project;
mod pool_hits;
pub(crate) mod warm;

use std::{
    collections::HashSet,
    thread,
    time::{Duration, Instant},
};

use raddle_model::{TaskState, Tid};

use self::engine_project::{EngineProject, app};
use crate::{
    Plan, floor,
    idle::{cpu_nanos, pss_mb},
    stats::{Requirement, median, micros, print_rounds, rate, ratio},
};

/// As many at a time as the machine has cores, for floor and pool alike.
const PARALLEL: usize = 2;
/// A pool that is never empty while tasks wait, and enough workers that results are written in
/// batches.
const POOL: [&str; 4] = ["--warm-pool", "8", "--max-workers", "32"];
const SAMPLES: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Redis,
}

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let mut requirements = throughput(plan);
    requirements.extend([Engine::Sqlite, Engine::Redis].map(|engine| latency(plan, engine)));
    requirements
        .extend([Engine::Sqlite, Engine::Redis].map(|engine| pool_hits::bench_hits(plan, engine)));
    requirements
        .extend([Engine::Sqlite, Engine::Redis].map(|engine| one_worker_per_task(plan, engine)));
    requirements.extend([Engine::Sqlite, Engine::Redis].map(|engine| survival(plan, engine)));
    requirements.extend(idle(plan));
    requirements
}

fn throughput(plan: &Plan) -> Vec<Requirement> {
    let tasks = if plan.quick { 500 } else { 3000 };
    let (mut bare, mut sqlite, mut redis) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        bare.push(rate(
            tasks,
            floor::spawns_of_program(&app(), tasks, PARALLEL),
        ));
        sqlite.push(rate(tasks, sustained(Engine::Sqlite, tasks)));
        redis.push(rate(tasks, sustained(Engine::Redis, tasks)));
    }
    print_rounds(
        "bare posix_spawn + wait of the program, 2 at a time",
        "/s",
        &bare,
    );
    print_rounds("one-shot routine tasks, SQLite", "/s", &sqlite);
    print_rounds("one-shot routine tasks, Redis", "/s", &redis);
    vec![
        Requirement::at_least(
            "one-shot tasks on SQLite, of bare spawns",
            ratio(&sqlite, &bare),
            0.5,
        ),
        Requirement::at_least(
            "one-shot tasks on Redis, of bare spawns",
            ratio(&redis, &bare),
            0.5,
        ),
    ]
}

/// From the first submit to the last durable result, with a pool that is already warm.
fn sustained(engine: Engine, tasks: usize) -> Duration {
    let project = EngineProject::new(engine);
    let spawner = project.spawner(&POOL);
    project.wait_until_warm(8);
    let began = Instant::now();
    project.run_all(tasks);
    let took = began.elapsed();
    drop(spawner);
    took
}

/// From the call of submit to the first instruction of the function, one task at a time.
fn latency(plan: &Plan, engine: Engine) -> Requirement {
    let samples = if plan.quick { 50 } else { SAMPLES };
    let (mut resident, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let project = EngineProject::new(engine);
        let worker = project.worker(&["--concurrency", "2"]);
        resident.push(project.submit_to_code("when", samples));
        drop(worker);
        let project = EngineProject::new(engine);
        let spawner = project.spawner(&["--warm-pool", "4"]);
        project.wait_until_warm(4);
        warm.push(project.submit_to_code("when", samples));
        drop(spawner);
    }
    print_rounds(
        &format!("submit to user code, resident worker, {engine:?}, p50"),
        "us",
        &resident,
    );
    print_rounds(
        &format!("submit to user code, warm pool, {engine:?}, p50"),
        "us",
        &warm,
    );
    let what = match engine {
        Engine::Sqlite => "warm hit on SQLite: submit to user code, of a resident worker",
        Engine::Redis => "warm hit on Redis: submit to user code, of a resident worker",
    };
    Requirement::at_most(what, ratio(&warm, &resident), 1.5)
}

/// Checks that there was one worker process per task and that none is left.
fn one_worker_per_task(plan: &Plan, engine: Engine) -> Requirement {
    let tasks = if plan.quick { 1000 } else { 10_000 };
    let project = EngineProject::new(engine);
    let spawner = project.spawner(&POOL);
    let tids = project.run_all(tasks);
    let workers: HashSet<Tid> = tids
        .iter()
        .filter_map(|tid| project.task(*tid).worker)
        .collect();
    let summary = project.summary();
    assert!(
        summary.ready.is_empty() && summary.delayed == 0 && summary.dead == 0,
        "the queue is empty: {summary:?}"
    );
    assert_eq!(
        summary.states.get(&TaskState::Completed),
        Some(&(tasks as u64))
    );
    assert!(spawner.stop(), "the spawner exits with success");
    project.assert_no_process_left();
    println!(
        "{engine:?}: {} workers for {tasks} tasks, queue empty, no process left",
        workers.len()
    );
    let what = match engine {
        Engine::Sqlite => "workers started and ended on SQLite, of tasks",
        Engine::Redis => "workers started and ended on Redis, of tasks",
    };
    Requirement::at_least(what, workers.len() as f64 / tasks as f64, 1.0)
}

/// The share of tasks that complete when their spawner is killed halfway and replaced.
fn survival(plan: &Plan, engine: Engine) -> Requirement {
    let tasks = if plan.quick { 1000 } else { 5000 };
    let project = EngineProject::new(engine);
    let first = project.spawner(&POOL);
    let tids = project.submit(tasks);
    project.wait_until_completed(tasks / 2);
    first.kill();
    let next = project.spawner(&POOL);
    project.wait_until_completed(tasks);
    let again = tids
        .iter()
        .filter(|tid| project.task(**tid).attempt > 1)
        .count();
    assert!(next.stop(), "the spawner exits with success");
    println!(
        "{engine:?}: a spawner killed among {tasks} tasks: all completed, {again} with a second attempt"
    );
    let completed = project
        .summary()
        .states
        .get(&TaskState::Completed)
        .copied()
        .unwrap_or_default();
    let what = match engine {
        Engine::Sqlite => "tasks completed though their spawner was killed, SQLite",
        Engine::Redis => "tasks completed though their spawner was killed, Redis",
    };
    Requirement::at_least(what, completed as f64 / tasks as f64, 1.0)
}

/// CPU time and memory of a pool without tasks.
fn idle(plan: &Plan) -> Vec<Requirement> {
    let seconds = if plan.quick { 5 } else { 30 };
    let mut pss = (Vec::new(), Vec::new());
    let mut percents = Vec::new();
    for engine in [Engine::Sqlite, Engine::Redis] {
        let project = EngineProject::new(engine);
        let spawner = project.spawner(&["--warm-pool", "4"]);
        project.wait_until_warm(4);
        // Warm up what is created on first use.
        project.run_all(20);
        project.wait_until_warm(4);
        thread::sleep(Duration::from_secs(1));
        let before = cpu_nanos(spawner.pid());
        thread::sleep(Duration::from_secs(seconds));
        let millis = cpu_nanos(spawner.pid()).saturating_sub(before) as f64 / 1e6;
        percents.push(millis / (seconds as f64 * 1e3) * 100.0);
        pss.0.push(pss_mb(spawner.pid()));
        pss.1
            .extend(project.workers().iter().map(|pid| pss_mb(*pid)));
        println!(
            "{engine:?}: idle spawner {:.1} MB, {millis:.1} ms of CPU in {seconds} s",
            pss.0[pss.0.len() - 1]
        );
    }
    println!("idle one-shot workers: {:.1} MB (PSS)", median(&pss.1));
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    vec![
        Requirement::at_most("idle one-shot worker, MB (PSS)", most(&pss.1), 6.0),
        Requirement::at_most("idle spawner, MB (PSS)", most(&pss.0), 10.0),
        Requirement::at_most("idle spawner, % of a core", most(&percents), 0.5),
    ]
}

/// The median in microseconds.
fn p50(times: &[Duration]) -> f64 {
    median(&times.iter().copied().map(micros).collect::<Vec<_>>())
}
