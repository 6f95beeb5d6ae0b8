//! Groups: how soon a process that was killed is replaced, and one whose task hangs, what it costs to keep five hundred, and how long ten take to stop.

use std::{
    collections::BTreeSet,
    fs,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use raddle_broker::Broker;

use crate::{
    Plan,
    bed::{Bed, Worker},
    hang,
    idle::{cpu_nanos, pss_mb},
    stats::{Verdict, median, show},
};

/// Processes of the group that is killed at, and stopped.
const FEW: usize = 10;
/// How often each seat may lose its process before that is a crash loop.
const FREE: usize = 3;
const MANY: usize = 500;
pub(crate) const LOOK: Duration = Duration::from_millis(1);
/// No step takes so long, unless it never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn bench(plan: &Plan) -> Vec<Verdict> {
    let (mut bare, mut replaced, mut stopped) = (Vec::new(), Vec::new(), Vec::new());
    let (mut deaf, mut stuck) = (Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        bare.extend((0..FEW).map(|_| millis(start_one())));
        let (gaps, stop) = few(if plan.quick { 1 } else { FREE });
        replaced.extend(gaps.into_iter().map(millis));
        stopped.push(millis(stop));
        deaf.push(millis(hang::deaf()));
        stuck.push(millis(hang::stuck()));
    }
    show("a worker starts, until it is registered", "ms", &bare);
    replaced.sort_by(f64::total_cmp);
    let p99 = replaced[((replaced.len() as f64 * 0.99) as usize).min(replaced.len() - 1)];
    println!(
        "a killed process is replaced: p50 {:.1} ms, p99 {p99:.1} ms",
        median(&replaced)
    );
    show("ten idle processes stop", "ms", &stopped);
    show(
        "after the limit of a deaf task the next is done",
        "ms",
        &deaf,
    );
    show(
        "after the limit of a stuck task another is ready",
        "ms",
        &stuck,
    );
    // Of every round: it is a promise for each task, and not for most.
    let worst = deaf.iter().chain(&stuck).copied().fold(0.0, f64::max);
    let many = if plan.quick { MANY / 10 } else { MANY };
    let (percent, mb) = idle(many, Duration::from_secs(if plan.quick { 5 } else { 20 }));
    println!("a manager of {many} idle processes: {mb:.1} MB (PSS), {percent:.2} % of a core");
    vec![
        Verdict::at_most(
            "ms from a kill to another that is ready, p99, above a bare start",
            p99 - median(&bare),
            100.0,
        ),
        Verdict::at_most(
            "ms after the limit of a task that hangs until it is replaced, worst",
            worst,
            1000.0,
        ),
        Verdict::at_most(
            "ms until a group of 10 that is idle has stopped",
            median(&stopped),
            300.0,
        ),
        Verdict::at_most("manager of 500 idle processes, % of a core", percent, 1.0),
        Verdict::at_most("manager of 500 idle processes, MB (PSS)", mb, 30.0),
    ]
}

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// A worker by itself.
fn start_one() -> Duration {
    let bed = Bed::new();
    drop(bed.broker());
    let began = Instant::now();
    let worker = bed.worker(&["--concurrency", "1"]);
    let took = began.elapsed();
    worker.kill();
    took
}

/// Kills each of a few processes so often, and then stops them.
fn few(times: usize) -> (Vec<Duration>, Duration) {
    let bed = Bed::new();
    let broker = bed.broker();
    let manager = up(&bed, &idle_group(FEW));
    let mut gaps = Vec::new();
    let mut seen = until(&bed, &*broker, |pids| pids.len() == FEW);
    for _ in 0..times {
        for victim in seen.clone() {
            let began = Instant::now();
            // SAFETY: a process of the group that was just seen; the signal has no memory effects here.
            unsafe { libc::kill(victim as i32, libc::SIGKILL) };
            let now = until(&bed, &*broker, |pids| {
                pids.difference(&seen).next().is_some()
            });
            gaps.push(began.elapsed());
            seen = now.into_iter().filter(|pid| *pid != victim).collect();
        }
        seen = until(&bed, &*broker, |pids| pids.len() == FEW);
    }
    let began = Instant::now();
    assert!(manager.stop(), "it leaves as it should");
    (gaps, began.elapsed())
}

/// What a manager costs whose processes have nothing to do: its share of a core, and its size.
fn idle(processes: usize, during: Duration) -> (f64, f64) {
    let bed = Bed::new();
    let broker = bed.broker();
    let manager = up(&bed, &idle_group(processes));
    until(&bed, &*broker, |pids| pids.len() == processes);
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

/// The manager of the groups in this text.
pub(crate) fn up(bed: &Bed, file: &str) -> Worker {
    fs::write(bed.path().join("raddle.toml"), file).expect("the directory can be written");
    Worker::start(bed.raddle(&["up"]).stderr(Stdio::null()))
}

/// The processes of the group, once they are as they should be.
pub(crate) fn until(
    bed: &Bed,
    broker: &dyn Broker,
    are_so: impl Fn(&BTreeSet<u32>) -> bool,
) -> BTreeSet<u32> {
    let began = Instant::now();
    loop {
        let workers = bed.wait(broker.workers()).expect("the broker answers");
        let pids: BTreeSet<u32> = workers
            .iter()
            .filter(|entry| entry.info.serves("a"))
            .map(|entry| entry.info.pid)
            .collect();
        if are_so(&pids) {
            return pids;
        }
        assert!(began.elapsed() < PATIENCE, "in vain: {pids:?}");
        thread::sleep(LOOK);
    }
}
