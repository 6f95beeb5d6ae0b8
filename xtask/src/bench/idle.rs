//! What a worker costs that has nothing to do.

use std::{fs, thread, time::Duration};

use crate::{Plan, bed::Bed, stats::Verdict};

pub(crate) fn bench(plan: &Plan) -> Vec<Verdict> {
    let seconds = if plan.quick { 5 } else { 30 };
    let bed = Bed::new();
    let worker = bed.worker(&["--concurrency", "2"]);
    // One task, so that what is made on first use has been made.
    let status = bed.raddle(&["run", "--", "true"]).status().expect("the release binary starts");
    assert!(status.success());
    thread::sleep(Duration::from_secs(1));
    let before = cpu_ticks(worker.pid());
    thread::sleep(Duration::from_secs(seconds));
    let ticks = cpu_ticks(worker.pid()) - before;
    // A hundredth of a second is what the kernel counts in, so 30 seconds tell 0.03 %.
    let percent = ticks as f64 / (seconds as f64 * 100.0) * 100.0;
    let rss = rss_mb(worker.pid());
    println!("idle worker: {rss:.1} MB resident, {ticks} ticks of CPU in {seconds} s");
    vec![
        Verdict::at_most("idle worker, MB resident", rss, 12.0),
        Verdict::at_most("idle worker, % of a core", percent, 0.1),
    ]
}

fn cpu_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the worker is alive");
    let after_name = stat.rsplit_once(')').expect("the name is in brackets").1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    // Fields 14 and 15 of the whole line are the 12th and 13th after the name.
    [11, 12].iter().map(|i| fields[*i].parse::<u64>().expect("a number")).sum()
}

fn rss_mb(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the worker is alive");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a process has a size");
    let kib: f64 = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
    kib / 1024.0
}
