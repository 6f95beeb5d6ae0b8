//! Capabilities: no process of an attempt has one in any set, and none that it could get.

use raddle_runner::{ExecRequest, SandboxConfig};

use super::{fallback::lenient, hygiene::below, rigs, rigs_under, status};
use crate::support::{Rig, until};

/// The sets of a process. The last bounds what a program could get.
const SETS: [&str; 5] = ["CapInh", "CapPrm", "CapEff", "CapAmb", "CapBnd"];
const NONE: &str = "0000000000000000";
/// The number of the capability that it takes to bound them.
const SETPCAP: u32 = 8;

fn sets(pid: u32) -> [String; 5] {
    SETS.map(|set| status(pid, set))
}

/// What is left of a runner's sets. Whoever may not bound them has its own bound.
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
async fn neither_shim_nor_command_has_any() {
    for (refused, is_whole) in [
        ("", true),
        ("refusing namespaces", false),
        ("refusing namespaces,landlock,filter", false),
    ] {
        for mut rig in rigs_under(refused).await {
            let request = lenient(rig.sh("echo ready; sleep 300 & wait"));
            rig.start(&request).await;
            let shim = rig.started().await;
            // In a user namespace of its own everybody may bound them.
            let left = if is_whole {
                [NONE; 5].map(str::to_owned)
            } else {
                left(rig.runner.pid())
            };
            until("the command has begun", || below(shim).len() == 2).await;
            for pid in [vec![shim], below(shim)].concat() {
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
async fn a_proxy_has_none() {
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
        let inside = below(shim);
        let others: Vec<u32> = below(runner)
            .into_iter()
            .filter(|pid| *pid != shim && !inside.contains(pid))
            .collect();
        let [proxy] = others[..] else {
            panic!("{others:?}")
        };
        // It is another process, which may come to that later.
        until("it listens", || status(proxy, "Seccomp") == "2").await;
        assert_eq!(
            (sets(proxy), status(proxy, "NoNewPrivs").as_str()),
            (left(runner), "1")
        );
        kill(rig).await;
    }
}
