//! CPU time and memory of an idle worker.

use std::{fs, io, thread, time::Duration};

use crate::{Plan, project_dir::ProjectDir, stats::Requirement};

pub(crate) fn bench(plan: &Plan) -> Vec<Requirement> {
    let seconds = if plan.quick { 5 } else { 30 };
    let project = ProjectDir::new();
    let worker = project.worker(&["--concurrency", "2"]);
    // One task, so that everything that is created on first use exists.
    let status = project
        .raddle(&["run", "--", "true"])
        .status()
        .expect("the release binary starts");
    assert!(status.success());
    thread::sleep(Duration::from_secs(1));
    let before = cpu_nanos(worker.pid());
    thread::sleep(Duration::from_secs(seconds));
    let millis = cpu_nanos(worker.pid()).saturating_sub(before) as f64 / 1e6;
    let percent = millis / (seconds as f64 * 1e3) * 100.0;
    let pss = pss_mb(worker.pid());
    println!("idle worker: {pss:.1} MB (PSS), {millis:.1} ms of CPU in {seconds} s");
    vec![
        Requirement::at_most("idle worker, MB (PSS)", pss, 10.0),
        Requirement::at_most("idle worker, % of a core", percent, 0.1),
    ]
}

/// The CPU time of all threads of a process, in nanoseconds. The counters in `stat` are sampled at
/// clock ticks, which charges a whole tick to a thread that a timer has just woken.
pub(crate) fn cpu_nanos(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the worker is alive");
    let of_thread = |thread: io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads.filter_map(of_thread).sum()
}

/// The proportional set size: a page that several processes share counts by its share.
pub(crate) fn pss_mb(pid: u32) -> f64 {
    let rollup =
        fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("the process is alive");
    let line = rollup
        .lines()
        .find(|line| line.starts_with("Pss:"))
        .expect("a process has a size");
    let kib: f64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number");
    kib / 1024.0
}
