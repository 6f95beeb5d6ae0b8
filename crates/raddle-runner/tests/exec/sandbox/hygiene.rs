//! Nothing is left when a process is killed while a sandboxed task runs.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use raddle_runner::{ExecRequest, SandboxConfig};

use super::{boxed, rigs};
use crate::support::{alive, mark, options, state, until};

/// Writes files, has children that ignore SIGTERM, and waits.
const BUSY: &str = "dd if=/dev/zero of=/scratch/much bs=1M count=5 2>/dev/null; sleep 300 & setsid sleep 300 & \
                    (setsid sh -c 'trap \"\" TERM HUP; sleep 300' &); echo ready; sleep 300";

/// Mounts at the paths where sandboxes mount, as the host sees them. Mounts elsewhere may come and
/// go.
fn mounts() -> BTreeSet<String> {
    let all = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_ours = |line: &&str| {
        let at = line.split(' ').nth(4).unwrap_or_default();
        ["/tmp", "/scratch", "/handler"]
            .iter()
            .any(|directory| at.starts_with(directory))
    };
    all.lines().filter(is_ours).map(str::to_owned).collect()
}

fn kill_9(pid: u32) {
    assert!(
        Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

/// Descendants of a process.
pub(super) fn descendants(pid: u32) -> Vec<u32> {
    let children =
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    // The fork server of a runner belongs to no attempt.
    let is_fork_server = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name == "raddle-fork-srv\n")
    };
    let children = children
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .filter(|pid| !is_fork_server(pid));
    children
        .flat_map(|child| [vec![child], descendants(child)].concat())
        .collect()
}

#[tokio::test]
async fn killed_runner_leaves_no_sandbox() {
    let before = mounts();
    for mut rig in rigs().await {
        let request = boxed(rig.sh(BUSY));
        rig.start_until_output(&request).await;
        let runner = rig.runner.pid();
        let family = descendants(runner);
        assert!(family.len() >= 5, "{family:?}");
        kill_9(runner);
        assert!(rig.next().await.is_err());
        until("the sandbox is gone", || {
            rig.leftover_processes().is_empty()
        })
        .await;
        for pid in family {
            until("all of it", || matches!(state(pid), None | Some('Z'))).await;
        }
        rig.finish().await;
    }
    assert_eq!(mounts(), before);
}

#[tokio::test]
async fn killed_runner_leaves_no_proxy() {
    for mut rig in rigs().await {
        let network = "example.org:443".parse().unwrap();
        let request = ExecRequest {
            sandbox: Some(SandboxConfig {
                network,
                ..SandboxConfig::default()
            }),
            ..rig.sh(BUSY)
        };
        rig.start_until_output(&request).await;
        let family = descendants(rig.runner.pid());
        kill_9(rig.runner.pid());
        assert!(rig.next().await.is_err());
        for pid in family {
            until("all of it", || matches!(state(pid), None | Some('Z'))).await;
        }
        rig.finish().await;
    }
}

#[tokio::test]
async fn killed_worker_leaves_no_sandbox() {
    let before = mounts();
    // The worker alone, and both at once, as when a machine runs out of memory.
    for both in [false, true] {
        let mark = mark();
        let mut worker = Command::new(options().program)
            .args(["boxed", BUSY])
            .env("RADDLE_TEST_MARK", &mark)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(worker.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let pids: Vec<u32> = line
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect();
        until("the family is there", || descendants(pids[0]).len() >= 5).await;
        let family = descendants(pids[0]);
        if both {
            kill_9(pids[0]);
        }
        worker.kill().unwrap();
        worker.wait().unwrap();
        until("the sandbox is gone", || alive(&mark).is_empty()).await;
        for pid in family.into_iter().chain(pids) {
            until("all of it", || matches!(state(pid), None | Some('Z'))).await;
        }
    }
    assert_eq!(mounts(), before);
}
