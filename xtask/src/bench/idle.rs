//! What a worker costs that has nothing to do.

use std::{fs, io, thread, time::Duration};

use crate::{Plan, bed::Bed, stats::Verdict};

pub(crate) fn bench(plan: &Plan) -> Vec<Verdict> {
    let seconds = if plan.quick { 5 } else { 30 };
    let bed = Bed::new();
    let worker = bed.worker(&["--concurrency", "2"]);
    // One task, so that what is made on first use has been made.
    let status = bed
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
        Verdict::at_most("idle worker, MB (PSS)", pss, 10.0),
        Verdict::at_most("idle worker, % of a core", percent, 0.1),
    ]
}

/// The time that all threads of a process have run for, in nanoseconds. The usual count, in hundredths of a second, charges a whole one to
/// whoever runs when it is full, which is often one that has just been woken by the clock.
pub(crate) fn cpu_nanos(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the worker is alive");
    let of_thread = |thread: io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads.filter_map(of_thread).sum()
}

/// The proportional set size: a page that several processes share counts for each by its share.
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
