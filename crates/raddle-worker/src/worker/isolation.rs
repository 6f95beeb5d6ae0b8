//! Isolation of a task: what its spec asks for, and the minimum that its worker enforces.
//!
//! A worker with a minimum is meant for untrusted tasks, so it also ignores settings in their specs
//! that would weaken the isolation.

use raddle_model::{
    ExitStatus, Limits, Target, TaskSpec,
    spec::{Isolation, NetworkPolicy, network::is_public},
};
use raddle_runner::SandboxConfig;

/// A text that names no isolation level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no isolation level: use 'shared', 'process', 'sandbox' or 'docker'")]
pub struct ParseMinIsolationError(String);

/// Parses the minimum isolation of a worker.
pub fn parse_min_isolation(text: &str) -> Result<Isolation, ParseMinIsolationError> {
    let found = Isolation::ALL
        .into_iter()
        .find(|isolation| isolation.as_str() == text);
    found.ok_or_else(|| ParseMinIsolationError(text.to_owned()))
}

const NO_MOUNTS: &str = "this worker shows tasks no files of its host: leave out mounts";

/// How a task is isolated on this worker.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResolvedIsolation {
    /// An ordinary process.
    Process,
    /// The sandbox that the task asks for.
    Sandbox(SandboxConfig),
    /// A sandbox that only the worker's minimum asks for. The task does not know of it, so its
    /// `cwd` names a directory of the host.
    RaisedSandbox(SandboxConfig),
    /// A container.
    Container {
        /// Whether it shares the host's network. Otherwise it has none.
        is_in_host_network: bool,
    },
}

/// Resolves the isolation of a task on a worker that enforces `minimum` and has an image for
/// containers or not. The error is the end of an attempt that cannot start.
pub(super) fn resolve_isolation(
    spec: &TaskSpec,
    minimum: Isolation,
    has_image: bool,
) -> Result<ResolvedIsolation, ExitStatus> {
    let refused = |message: &str| {
        Err(ExitStatus::SpawnFailed {
            message: message.into(),
        })
    };
    match spec.isolation().max(minimum) {
        Isolation::Shared | Isolation::Process => Ok(ResolvedIsolation::Process),
        Isolation::Sandbox if spec.isolation() < Isolation::Sandbox => {
            Ok(ResolvedIsolation::RaisedSandbox(SandboxConfig::default()))
        }
        Isolation::Sandbox => {
            let mut sandbox = SandboxConfig {
                network: spec.network.clone(),
                fallback: spec.isolation_fallback,
                directory: None,
                mounts: spec.mounts.clone(),
            };
            if minimum == Isolation::Sandbox {
                sandbox.fallback = false;
                if !sandbox.mounts.is_empty() {
                    return refused(NO_MOUNTS);
                }
                if sandbox.network == NetworkPolicy::Host {
                    return refused(
                        "this worker gives no task its host's network: list the endpoints it needs",
                    );
                }
                let is_inside = |address| !is_public(address);
                if sandbox
                    .network
                    .endpoints()
                    .iter()
                    .filter_map(|endpoint| endpoint.address())
                    .any(is_inside)
                {
                    return refused(
                        "this worker gives no task its host's network: list no address of it",
                    );
                }
            }
            Ok(ResolvedIsolation::Sandbox(sandbox))
        }
        Isolation::Docker if has_image => resolve_container(spec, minimum),
        // A worker without this capability does not claim such a task. If one arrives anyway,
        // refuse it instead of running it without isolation.
        _ => refused("this worker cannot isolate the task as its spec asks"),
    }
}

/// The limits of a task. An untrusted task may lower the sandbox defaults, and not raise them.
pub(super) fn effective_limits(spec: &TaskSpec, minimum: Isolation) -> Limits {
    if minimum <= Isolation::Process {
        spec.limits.clone()
    } else {
        raddle_runner::cap_limits(&spec.limits)
    }
}

/// Resolves the isolation of a task that runs in a container.
fn resolve_container(spec: &TaskSpec, minimum: Isolation) -> Result<ResolvedIsolation, ExitStatus> {
    let refused = |message: &str| {
        Err(ExitStatus::SpawnFailed {
            message: message.into(),
        })
    };
    if !matches!(spec.target, Target::Command(_)) {
        return refused(
            "only commands run in containers: give a routine or handler the isolation 'sandbox'",
        );
    }
    // A task that asked for less does not know that it has another root, and its submitter may have
    // set `cwd`; it is ignored then.
    if spec.isolation() > Isolation::Process && spec.cwd.is_some() {
        return refused("a container has its own root directory: leave out cwd");
    }
    if !spec.mounts.is_empty() {
        return refused(NO_MOUNTS);
    }
    match &spec.network {
        NetworkPolicy::None => Ok(ResolvedIsolation::Container {
            is_in_host_network: false,
        }),
        NetworkPolicy::Host if minimum <= Isolation::Process => Ok(ResolvedIsolation::Container {
            is_in_host_network: true,
        }),
        NetworkPolicy::Host => refused("this worker gives no task its host's network"),
        _ => refused(
            "a container has its host's network or none: use the isolation 'sandbox' for a list of endpoints",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(isolation: Isolation, fallback: bool, network: &str) -> TaskSpec {
        let network = network.parse().unwrap();
        TaskSpec {
            isolation: Some(isolation),
            isolation_fallback: fallback,
            network,
            ..TaskSpec::command(["true"])
        }
    }

    #[test]
    fn without_a_minimum_a_task_gets_the_isolation_it_asks_for() {
        let resolve = |spec: &TaskSpec| resolve_isolation(spec, Isolation::Process, false);
        assert_eq!(
            resolve(&spec(Isolation::Process, false, "none")),
            Ok(ResolvedIsolation::Process)
        );
        let asked = SandboxConfig {
            network: NetworkPolicy::Host,
            fallback: true,
            ..SandboxConfig::default()
        };
        assert_eq!(
            resolve(&spec(Isolation::Sandbox, true, "host")),
            Ok(ResolvedIsolation::Sandbox(asked))
        );
        assert!(resolve(&spec(Isolation::Docker, false, "none")).is_err());
    }

    #[test]
    fn a_minimum_caps_limits() {
        let greedy = Limits {
            memory_mb: Some(100_000),
            max_procs: Some(100_000),
            max_fds: Some(4),
            cpu_percent: None,
        };
        let spec = TaskSpec {
            limits: greedy.clone(),
            ..TaskSpec::command(["true"])
        };
        assert_eq!(effective_limits(&spec, Isolation::Process), greedy);
        let capped = effective_limits(&spec, Isolation::Sandbox);
        assert_eq!(
            (capped.memory_mb, capped.max_procs, capped.max_fds),
            (Some(1024), Some(256), Some(4))
        );
    }

    #[test]
    fn a_minimum_raises_lower_levels_and_allows_no_weakening() {
        let resolve = |spec: &TaskSpec| resolve_isolation(spec, Isolation::Sandbox, false);
        assert_eq!(
            resolve(&spec(Isolation::Process, false, "none")),
            Ok(ResolvedIsolation::RaisedSandbox(SandboxConfig::default()))
        );
        let whole = SandboxConfig {
            network: "example.org:443".parse().unwrap(),
            ..SandboxConfig::default()
        };
        assert_eq!(
            resolve(&spec(Isolation::Sandbox, true, "example.org:443")),
            Ok(ResolvedIsolation::Sandbox(whole))
        );
        for network in ["host", "127.0.0.1:6379", "example.org:443,[::1]:80"] {
            let refused = resolve(&spec(Isolation::Sandbox, false, network))
                .unwrap_err()
                .to_string();
            assert!(refused.contains("its host's network"), "{refused}");
        }
        assert!(resolve(&spec(Isolation::Docker, false, "none")).is_err());
        let mounts = vec!["/home:/data".parse().unwrap()];
        let with_mounts = TaskSpec {
            mounts,
            ..spec(Isolation::Sandbox, false, "none")
        };
        assert!(resolve_isolation(&with_mounts, Isolation::Process, false).is_ok());
        assert!(
            resolve(&with_mounts)
                .unwrap_err()
                .to_string()
                .contains("leave out mounts")
        );
        assert!(
            resolve_isolation(&with_mounts, Isolation::Docker, true)
                .unwrap_err()
                .to_string()
                .contains("leave out mounts")
        );
    }

    #[test]
    fn runs_containers_on_a_worker_with_an_image() {
        let resolve = |spec: &TaskSpec, minimum| resolve_isolation(spec, minimum, true);
        let (none, host) = (
            ResolvedIsolation::Container {
                is_in_host_network: false,
            },
            ResolvedIsolation::Container {
                is_in_host_network: true,
            },
        );
        let asked = |network| spec(Isolation::Docker, false, network);
        assert_eq!(
            resolve(&asked("none"), Isolation::Process).as_ref(),
            Ok(&none)
        );
        assert_eq!(resolve(&asked("host"), Isolation::Process), Ok(host));
        assert!(
            resolve(&asked("host"), Isolation::Sandbox)
                .unwrap_err()
                .to_string()
                .contains("its host's network")
        );
        assert!(
            resolve(&asked("example.org:443"), Isolation::Process)
                .unwrap_err()
                .to_string()
                .contains("'sandbox'")
        );
        let cwd = |isolation| TaskSpec {
            cwd: Some("/x".into()),
            ..spec(isolation, false, "none")
        };
        assert!(
            resolve(&cwd(Isolation::Docker), Isolation::Process)
                .unwrap_err()
                .to_string()
                .contains("cwd")
        );
        assert_eq!(
            resolve(&cwd(Isolation::Process), Isolation::Docker).as_ref(),
            Ok(&none),
            "it is raised"
        );
        assert_eq!(
            resolve(&spec(Isolation::Sandbox, true, "none"), Isolation::Docker),
            Ok(none)
        );
        let routine = TaskSpec {
            isolation: Some(Isolation::Docker),
            ..TaskSpec::new(Target::Routine("r".into()))
        };
        assert!(
            resolve(&routine, Isolation::Process)
                .unwrap_err()
                .to_string()
                .contains("only commands")
        );
    }

    #[test]
    fn parses_every_isolation_level() {
        assert_eq!(
            (
                parse_min_isolation("process"),
                parse_min_isolation("sandbox")
            ),
            (Ok(Isolation::Process), Ok(Isolation::Sandbox))
        );
        assert_eq!(parse_min_isolation("docker"), Ok(Isolation::Docker));
        for text in ["", "Docker", "Sandbox", "vm"] {
            assert!(
                parse_min_isolation(text)
                    .unwrap_err()
                    .to_string()
                    .contains("use 'shared', 'process', 'sandbox' or 'docker'")
            );
        }
    }
}
