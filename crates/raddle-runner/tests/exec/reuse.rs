//! One runner for many attempts.

use std::fs;

use crate::support::{Rig, code};

fn descriptors(pid: u32) -> Vec<String> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    links
        .map(|link| {
            fs::read_link(link.path())
                .unwrap()
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

fn status(pid: u32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .unwrap();
    value
        .trim_start_matches(':')
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

#[tokio::test]
async fn two_hundred_attempts_leak_nothing_in_a_runner() {
    let mut rig = Rig::new().await;
    assert_eq!(rig.run(&rig.sh("echo hello")).await.done.exit, code(0));
    let before = descriptors(rig.runner.pid());
    for n in 0..200 {
        let mut request = match n % 4 {
            0 => rig.command(&["no-such-program"]),
            1 => rig.sh("sleep 60 & exit 1"),
            2 => rig.sh("exit 0"),
            _ => rig.command(&["cat"]),
        };
        request.stdin = (n % 4 == 3).then(|| vec![b'x'; 100_000]);
        let outcome = rig.run(&request).await;
        assert_eq!(outcome.done.exit.shell_code(), [127, 1, 0, 0][n % 4]);
        assert_eq!(outcome.stdout.len(), if n % 4 == 3 { 100_000 } else { 0 });
    }
    assert_eq!(descriptors(rig.runner.pid()), before);
    rig.finish().await;
}

#[tokio::test]
async fn idle_runner_is_small_and_has_one_thread() {
    let mut rig = Rig::new().await;
    assert_eq!(rig.run(&rig.sh("echo hello")).await.done.exit, code(0));
    let pid = rig.runner.pid();
    assert_eq!(status(pid, "Threads"), 1);
    // Only private memory counts; the rest are pages of the program and of libc, shared by all
    // runners.
    let own = status(pid, "RssAnon");
    assert!(own < 1024, "{own} KiB of its own");
    let all = status(pid, "VmRSS");
    assert!(all < 10 * 1024, "{all} KiB");
    rig.finish().await;
}
