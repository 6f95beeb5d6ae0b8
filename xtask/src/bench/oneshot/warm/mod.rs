//! Shared routine tasks in hosts, against claim + finish of the same engine without any process.

mod kills;
mod peers;

use std::{
    thread,
    time::{Duration, Instant},
};

use raddle_broker::NewTask;
use raddle_model::{Target, TaskSpec, TaskState};
use serde_json::json;

use super::{Engine, engine_project::EngineProject};
use crate::{
    Plan,
    idle::{cpu_nanos, pss_mb},
    queue::{claim_and_finish_all, enqueue, register},
    redis::wake_up,
    stats::{Requirement, median, print_rounds, rate, ratio},
};

/// Naps of a second that one host runs at once.
const NAPS: usize = 1000;
const GROUP: usize = 500;

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let tasks = if plan.quick { 10_000 } else { 40_000 };
    let mut requirements = Vec::new();
    for (engine, name, least, shared, replaced) in [
        (
            Engine::Sqlite,
            "SQLite",
            0.4,
            "shared tasks, of claim + finish, SQLite",
            "hosts replaced every 1,000 tasks, of hosts that stay, SQLite",
        ),
        (
            Engine::Redis,
            "Redis",
            0.5,
            "shared tasks, of claim + finish, Redis",
            "hosts replaced every 1,000 tasks, of hosts that stay, Redis",
        ),
    ] {
        let (mut floor, mut warm, mut recycled) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..plan.rounds {
            floor.push(claim_and_finish(engine, tasks));
            warm.push(run_noops(&EngineProject::new(engine), tasks, &[]));
            let project = EngineProject::new(engine);
            recycled.push(run_noops(&project, tasks, &["--host-max-tasks", "1000"]));
        }
        print_rounds(&format!("claim + finish, {name}"), "/s", &floor);
        print_rounds(&format!("shared tasks, two hosts, {name}"), "/s", &warm);
        print_rounds(
            &format!("the same, hosts replaced every 1,000 tasks, {name}"),
            "/s",
            &recycled,
        );
        requirements.push(Requirement::at_least(shared, ratio(&warm, &floor), least));
        requirements.push(Requirement::at_least(
            replaced,
            ratio(&recycled, &warm),
            0.9,
        ));
        if engine == Engine::Redis {
            requirements.push(Requirement::at_least(
                "shared tasks a second, Redis",
                median(&warm),
                20_000.0,
            ));
        }
    }
    for engine in [Engine::Sqlite, Engine::Redis] {
        requirements.push(latency(plan, engine));
    }
    let (mut seconds, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let (took, pss) = nap();
        seconds.push(took);
        memory.push(pss);
    }
    print_rounds("1,000 naps of a second in one host", "s", &seconds);
    print_rounds("worker, runner and host meanwhile (PSS)", "MB", &memory);
    requirements.push(Requirement::at_most(
        "s for 1,000 tasks that sleep for one, in one host",
        median(&seconds),
        2.0,
    ));
    requirements.push(Requirement::at_most(
        "worker, runner and host with 1,000 tasks, MB (PSS)",
        median(&memory),
        40.0,
    ));
    requirements.push(idle(plan));
    requirements.push(kills::bench(plan));
    if plan.with_peers {
        requirements.extend(peers::bench(plan));
    }
    requirements
}

/// From the call of submit to the first instruction of a routine in a host, against the wake-up of
/// a claim that waits.
fn latency(plan: &Plan, engine: Engine) -> Requirement {
    let samples = if plan.quick { 50 } else { 200 };
    let (mut woken, mut begun) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let project = EngineProject::new(engine);
        woken.push(wake_up(&project.dir, &project.url, &*project.broker));
        let project = EngineProject::new(engine);
        let worker = project.worker(&["--hosts", "2"]);
        submit(&project, "noop", 1, &[]);
        project.wait_until_completed(1);
        begun.push(project.submit_to_code("when-shared", samples));
        drop(worker);
    }
    print_rounds(
        &format!("submit to claim, worker waiting, {engine:?}, p50"),
        "us",
        &woken,
    );
    print_rounds(
        &format!("submit to user code in a host, {engine:?}, p50"),
        "us",
        &begun,
    );
    let name = match engine {
        Engine::Sqlite => "submit to user code in a host, of the wake-up of a claim, SQLite",
        Engine::Redis => "submit to user code in a host, of the wake-up of a claim, Redis",
    };
    Requirement::at_most(name, ratio(&begun, &woken), 1.3)
}

/// The CPU time of an idle worker with its two hosts and their runners.
fn idle(plan: &Plan) -> Requirement {
    let seconds = if plan.quick { 5 } else { 30 };
    let project = EngineProject::new(Engine::Sqlite);
    let worker = project.worker(&["--hosts", "2"]);
    submit(&project, "noop", 100, &[]);
    project.wait_until_completed(100);
    thread::sleep(Duration::from_secs(1));
    let processes = tree(worker.pid());
    let used = || processes.iter().map(|pid| cpu_nanos(*pid)).sum::<u64>();
    let before = used();
    thread::sleep(Duration::from_secs(seconds));
    let millis = used().saturating_sub(before) as f64 / 1e6;
    let memory: f64 = processes.iter().map(|pid| pss_mb(*pid)).sum();
    println!(
        "idle worker with two hosts: {} processes, {memory:.1} MB (PSS), {millis:.1} ms of CPU in {seconds} s",
        processes.len()
    );
    Requirement::at_most(
        "idle worker with two hosts, % of a core",
        millis / (seconds as f64 * 1e3) * 100.0,
        0.1,
    )
}

fn submit(project: &EngineProject, routine: &str, tasks: usize, args: &[serde_json::Value]) {
    let mut spec = TaskSpec::new(Target::Routine(routine.into()));
    spec.args = args.to_vec();
    project.dir.wait(async {
        let mut left = tasks;
        while left > 0 {
            let batch = vec![NewTask::new(spec.clone()); left.min(GROUP)];
            left -= batch.len();
            project.broker.submit(batch).await.expect("there is room");
        }
    });
}

fn completed(project: &EngineProject) -> usize {
    let summary = project.summary();
    summary
        .states
        .get(&TaskState::Completed)
        .map_or(0, |count| *count as usize)
}

/// Tasks a second, with nothing between claim and finish.
fn claim_and_finish(engine: Engine, tasks: usize) -> f64 {
    let project = EngineProject::new(engine);
    let broker = &*project.broker;
    let owner = project.dir.wait(register(broker));
    enqueue(&project.dir, broker, tasks);
    let began = Instant::now();
    project.dir.wait(async {
        tokio::join!(
            claim_and_finish_all(broker, owner),
            claim_and_finish_all(broker, owner)
        )
    });
    rate(tasks, began.elapsed())
}

/// Tasks a second through a worker with two hosts, once it has got going.
fn run_noops(project: &EngineProject, tasks: usize, flags: &[&str]) -> f64 {
    submit(project, "noop", tasks, &[]);
    let worker = project.worker(&[&["--hosts", "2"], flags].concat());
    let deadline = Instant::now() + Duration::from_secs(300);
    let wait_for = |least: usize| loop {
        let done = completed(project);
        if done >= least {
            return (done, Instant::now());
        }
        assert!(Instant::now() < deadline, "the tasks are finished in time");
        thread::sleep(Duration::from_millis(4));
    };
    let (first, began) = wait_for(tasks / 10);
    let (last, ended) = wait_for(tasks);
    drop(worker);
    rate(last - first, ended - began)
}

/// Seconds until a thousand naps of a second are over, and the memory of all processes meanwhile.
fn nap() -> (f64, f64) {
    let project = EngineProject::new(Engine::Sqlite);
    let worker = project.worker(&["--hosts", "1", "--host-concurrency", "1000"]);
    submit(&project, "nap", 1, &[json!(1)]);
    project.wait_until_completed(1);
    let began = Instant::now();
    submit(&project, "nap", NAPS, &[json!(1000)]);
    thread::sleep(Duration::from_millis(700));
    let memory = tree(worker.pid()).into_iter().map(pss_mb).sum();
    project.wait_until_completed(1 + NAPS);
    (began.elapsed().as_secs_f64(), memory)
}

/// A process and all below it.
fn tree(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        let path = format!("/proc/{pid}/task/{pid}/children");
        let children = std::fs::read_to_string(path).unwrap_or_default();
        found.extend(
            children
                .split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    found
}
