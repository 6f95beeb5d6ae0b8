//! Capabilities: no process of an attempt has one in any set, or can gain one.

use raddle_runner::{ExecRequest, SandboxConfig};

use super::{fallback::with_fallback, hygiene::descendants, rigs, rigs_under, status};
use crate::support::{Rig, until};

/// Capability sets of a process. The last, the bounding set, limits what a program could gain.
const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapAmb", "CapBnd"];
const NONE: &str = "0000000000000000";
/// Number of CAP_SETPCAP, which is needed to clear the bounding set.
const SETPCAP: u32 = 8;

fn sets(pid: u32) -> [String; 5] {
    SETS.map(|set| status(pid, set))
}

/// Expected sets below a runner. Without CAP_SETPCAP the bounding set stays.
fn left(runner: u32) -> [String; 5] {
    let can = u64::from_str_radix(&status(runner, "CapEff"), 16).unwrap();
    let mut sets = [NONE; 5].map(str::to_owned);
    if can & (1 << SETPCAP) == 0 {
        sets[4] = status(runner, "CapBnd");
    }
    sets
}

async fn kill(mut rig: Rig) {
    rig.runner
        .send(raddle_runner::RunnerCommand::Kill)
        .await
        .unwrap();
    rig.end().await;
    rig.finish().await;
}

#[tokio::test]
async fn shim_and_command_have_no_capabilities() {
    for (refused, is_whole) in [
        ("", true),
        ("refusing namespaces", false),
        ("refusing namespaces,landlock,filter", false),
    ] {
        for mut rig in rigs_under(refused).await {
            let request = with_fallback(rig.sh("echo ready; sleep 300 & wait"));
            rig.start(&request).await;
            let shim = rig.started().await;
            // In a new user namespace every process has CAP_SETPCAP.
            let left = if is_whole {
                [NONE; 5].map(str::to_owned)
            } else {
                left(rig.runner.pid())
            };
            until("the command has begun", || descendants(shim).len() == 2).await;
            for pid in [vec![shim], descendants(shim)].concat() {
                assert_eq!(
                    (sets(pid), status(pid, "NoNewPrivs").as_str()),
                    (left.clone(), "1"),
                    "{refused}: {pid}"
                );
            }
            kill(rig).await;
        }
    }
}

#[tokio::test]
async fn proxy_has_no_capabilities() {
    for mut rig in rigs().await {
        let network = "example.org:443".parse().unwrap();
        let request = ExecRequest {
            sandbox: Some(SandboxConfig {
                network,
                ..SandboxConfig::default()
            }),
            ..rig.sh("echo ready; sleep 300")
        };
        let shim = rig.start_until_output(&request).await;
        let runner = rig.runner.pid();
        let inside = descendants(shim);
        let others: Vec<u32> = descendants(runner)
            .into_iter()
            .filter(|pid| *pid != shim && !inside.contains(pid))
            .collect();
        let [proxy] = others[..] else {
            panic!("{others:?}")
        };
        // It is another process, which may get there later.
        until("it listens", || status(proxy, "Seccomp") == "2").await;
        assert_eq!(
            (sets(proxy), status(proxy, "NoNewPrivs").as_str()),
            (left(runner), "1")
        );
        kill(rig).await;
    }
}
