//! Groups: the time to replace a killed process and a hung task, the cost of a manager with 500
//! processes, and the time to stop ten.

use std::{
    collections::BTreeSet,
    fs,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use raddle_broker::Broker;

use crate::{
    Plan, hang,
    idle::{cpu_nanos, pss_mb},
    project_dir::{ProjectDir, Worker},
    stats::{Requirement, median, print_rounds},
};

/// The number of processes of the group that is killed and stopped.
const FEW: usize = 10;
/// How often each process may be killed before that is a crash loop.
const FREE: usize = 3;
const MANY: usize = 500;
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The limit for any wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let (mut bare, mut replaced, mut stopped) = (Vec::new(), Vec::new(), Vec::new());
    let (mut task_ignoring_sigterm, mut task_with_stopped_runner) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        bare.extend((0..FEW).map(|_| millis(start_one())));
        let (gaps, stop) = kill_and_stop(if plan.quick { 1 } else { FREE });
        replaced.extend(gaps.into_iter().map(millis));
        stopped.push(millis(stop));
        task_ignoring_sigterm.push(millis(hang::task_ignoring_sigterm()));
        task_with_stopped_runner.push(millis(hang::task_with_stopped_runner()));
    }
    print_rounds("a worker starts, until it is registered", "ms", &bare);
    replaced.sort_by(f64::total_cmp);
    let p99 = replaced[((replaced.len() as f64 * 0.99) as usize).min(replaced.len() - 1)];
    println!(
        "a killed process is replaced: p50 {:.1} ms, p99 {p99:.1} ms",
        median(&replaced)
    );
    print_rounds("ten idle processes stop", "ms", &stopped);
    print_rounds(
        "after the limit of a deaf task the next is done",
        "ms",
        &task_ignoring_sigterm,
    );
    print_rounds(
        "after the limit of a stuck task another is ready",
        "ms",
        &task_with_stopped_runner,
    );
    // Of all rounds: the bound is a promise for each task.
    let worst = task_ignoring_sigterm
        .iter()
        .chain(&task_with_stopped_runner)
        .copied()
        .fold(0.0, f64::max);
    let many = if plan.quick { MANY / 10 } else { MANY };
    let (percent, mb) = measure_idle(many, Duration::from_secs(if plan.quick { 5 } else { 20 }));
    println!("a manager of {many} idle processes: {mb:.1} MB (PSS), {percent:.2} % of a core");
    vec![
        Requirement::at_most(
            "ms from a kill to another that is ready, p99, above a bare start",
            p99 - median(&bare),
            100.0,
        ),
        Requirement::at_most(
            "ms after the limit of a task that hangs until it is replaced, worst",
            worst,
            1000.0,
        ),
        Requirement::at_most(
            "ms until a group of 10 that is idle has stopped",
            median(&stopped),
            300.0,
        ),
        Requirement::at_most("manager of 500 idle processes, % of a core", percent, 1.0),
        Requirement::at_most("manager of 500 idle processes, MB (PSS)", mb, 30.0),
    ]
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// The start of one worker without a manager.
fn start_one() -> Duration {
    let project = ProjectDir::new();
    drop(project.broker());
    let began = Instant::now();
    let worker = project.worker(&["--concurrency", "1"]);
    let took = began.elapsed();
    worker.kill();
    took
}

/// Kills each process of a group `times` times, then stops the group.
fn kill_and_stop(times: usize) -> (Vec<Duration>, Duration) {
    let project = ProjectDir::new();
    let broker = project.broker();
    let manager = start_manager(&project, &idle_group(FEW));
    let mut gaps = Vec::new();
    let mut pids = wait_until_pids(&project, &*broker, |pids| pids.len() == FEW);
    for _ in 0..times {
        for victim in pids.clone() {
            let began = Instant::now();
            // SAFETY: a process of the group that was just seen; the signal has no memory effects
            // here.
            unsafe { libc::kill(victim as i32, libc::SIGKILL) };
            let now = wait_until_pids(&project, &*broker, |now| {
                now.difference(&pids).next().is_some()
            });
            gaps.push(began.elapsed());
            pids = now.into_iter().filter(|pid| *pid != victim).collect();
        }
        pids = wait_until_pids(&project, &*broker, |pids| pids.len() == FEW);
    }
    let began = Instant::now();
    assert!(manager.stop(), "the manager exits with success");
    (gaps, began.elapsed())
}

/// The CPU share and memory of a manager with idle processes.
fn measure_idle(processes: usize, during: Duration) -> (f64, f64) {
    let project = ProjectDir::new();
    let broker = project.broker();
    let manager = start_manager(&project, &idle_group(processes));
    wait_until_pids(&project, &*broker, |pids| pids.len() == processes);
    thread::sleep(Duration::from_secs(2));
    let before = cpu_nanos(manager.pid());
    thread::sleep(during);
    let percent =
        cpu_nanos(manager.pid()).saturating_sub(before) as f64 / during.as_nanos() as f64 * 100.0;
    (percent, pss_mb(manager.pid()))
}

fn idle_group(replicas: usize) -> String {
    format!(
        "[process.a]\nreplicas = {replicas}\nstart_timeout = '5m'\n[[process.a.worker]]\nslug = 'a'\n"
    )
}

/// Starts a manager of these groups.
pub(crate) fn start_manager(project: &ProjectDir, file: &str) -> Worker {
    fs::write(project.path().join("raddle.toml"), file).expect("the directory can be written");
    Worker::start(project.raddle(&["up"]).stderr(Stdio::null()))
}

/// Waits until the pids of the group are as expected, and returns them.
pub(crate) fn wait_until_pids(
    project: &ProjectDir,
    broker: &dyn Broker,
    is_expected: impl Fn(&BTreeSet<u32>) -> bool,
) -> BTreeSet<u32> {
    let began = Instant::now();
    loop {
        let workers = project.wait(broker.workers()).expect("the broker answers");
        let pids: BTreeSet<u32> = workers
            .iter()
            .filter(|entry| entry.info.serves("a"))
            .map(|entry| entry.info.pid)
            .collect();
        if is_expected(&pids) {
            return pids;
        }
        assert!(began.elapsed() < TIMEOUT, "timed out with pids {pids:?}");
        thread::sleep(POLL_INTERVAL);
    }
}
