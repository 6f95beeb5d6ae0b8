//! How far a task is kept apart from its host: what it asks for, and what its worker asks of every task.
//!
//! A worker with a minimum is for tasks that nobody trusts, and so it does not trust what their specs say in their own favour either.

use raddle_model::{
    ExitStatus, Limits, Target, TaskSpec,
    spec::{Isolation, NetworkPolicy, network::is_public},
};
use raddle_runner::SandboxConfig;

/// Why a text names nothing that a worker can ask of every task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' cannot be asked of every task: say 'shared', 'process', 'sandbox' or 'docker'")]
pub struct ParseMinIsolationError(String);

/// What a worker can ask of every task.
pub fn minimum(text: &str) -> Result<Isolation, ParseMinIsolationError> {
    let least = Isolation::ALL
        .into_iter()
        .find(|isolation| isolation.as_str() == text);
    least.ok_or_else(|| ParseMinIsolationError(text.to_owned()))
}

const NO_MOUNTS: &str = "this worker shows no task its host's files: leave out mounts";

/// The place of a task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IsolationSite {
    /// A process like any other.
    Open,
    /// A sandbox, as the task asks for.
    Asked(SandboxConfig),
    /// A sandbox, because its worker asks for it. The task knows nothing of that: what it says of directories is about its host.
    Raised(SandboxConfig),
    /// A container.
    Contained {
        /// Whether it is in its host's network, or in none.
        is_in_host_network: bool,
    },
}

/// Where a task runs on a worker that keeps all tasks apart by `least`, and has an image for containers or not. The error says how it ends
/// without having begun.
pub(super) fn of(
    spec: &TaskSpec,
    least: Isolation,
    has_image: bool,
) -> Result<IsolationSite, ExitStatus> {
    let refused = |message: &str| {
        Err(ExitStatus::SpawnFailed {
            message: message.into(),
        })
    };
    match spec.isolation().max(least) {
        Isolation::Shared | Isolation::Process => Ok(IsolationSite::Open),
        Isolation::Sandbox if spec.isolation() < Isolation::Sandbox => {
            Ok(IsolationSite::Raised(SandboxConfig::default()))
        }
        Isolation::Sandbox => {
            let mut sandbox = SandboxConfig {
                network: spec.network.clone(),
                fallback: spec.isolation_fallback,
                directory: None,
                mounts: spec.mounts.clone(),
            };
            if least == Isolation::Sandbox {
                sandbox.fallback = false;
                if !sandbox.mounts.is_empty() {
                    return refused(NO_MOUNTS);
                }
                if sandbox.network == NetworkPolicy::Host {
                    return refused(
                        "this worker lets no task into its host's network: list the places it needs",
                    );
                }
                let is_inside = |address| !is_public(address);
                if sandbox
                    .network
                    .places()
                    .iter()
                    .filter_map(|place| place.address())
                    .any(is_inside)
                {
                    return refused(
                        "this worker lets no task into its host's network: list none of its addresses",
                    );
                }
            }
            Ok(IsolationSite::Asked(sandbox))
        }
        Isolation::Docker if has_image => contained(spec, least),
        // Such a task is not claimed by a worker that does not offer it; whatever brought it here, it must not run without.
        _ => refused("this worker cannot isolate it as asked"),
    }
}

/// What a task may use there. One that is not trusted may lower what sandboxes have, and not raise it.
pub(super) fn limits(spec: &TaskSpec, least: Isolation) -> Limits {
    if least <= Isolation::Process {
        spec.limits.clone()
    } else {
        raddle_runner::capped(&spec.limits)
    }
}

/// The place of a task that runs in a container.
fn contained(spec: &TaskSpec, least: Isolation) -> Result<IsolationSite, ExitStatus> {
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
    // Whoever asks for less does not know that it has another root here, and sends the directory that it is in.
    if spec.isolation() > Isolation::Process && spec.cwd.is_some() {
        return refused("a container has a directory of its own, and sees no other: leave out cwd");
    }
    if !spec.mounts.is_empty() {
        return refused(NO_MOUNTS);
    }
    match &spec.network {
        NetworkPolicy::None => Ok(IsolationSite::Contained {
            is_in_host_network: false,
        }),
        NetworkPolicy::Host if least <= Isolation::Process => Ok(IsolationSite::Contained {
            is_in_host_network: true,
        }),
        NetworkPolicy::Host => refused("this worker lets no task into its host's network"),
        _ => refused(
            "a container reaches its host's network or none: the isolation 'sandbox' knows lists of places",
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
    fn a_task_gets_what_it_asks_for() {
        let place = |spec: &TaskSpec| of(spec, Isolation::Process, false);
        assert_eq!(
            place(&spec(Isolation::Process, false, "none")),
            Ok(IsolationSite::Open)
        );
        let asked = SandboxConfig {
            network: NetworkPolicy::Host,
            fallback: true,
            ..SandboxConfig::default()
        };
        assert_eq!(
            place(&spec(Isolation::Sandbox, true, "host")),
            Ok(IsolationSite::Asked(asked))
        );
        assert!(place(&spec(Isolation::Docker, false, "none")).is_err());
    }

    #[test]
    fn a_minimum_lets_no_task_raise_its_own_limits() {
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
        assert_eq!(limits(&spec, Isolation::Process), greedy);
        let capped = limits(&spec, Isolation::Sandbox);
        assert_eq!(
            (capped.memory_mb, capped.max_procs, capped.max_fds),
            (Some(1024), Some(256), Some(4))
        );
    }

    #[test]
    fn a_minimum_raises_what_is_below_and_concedes_nothing() {
        let place = |spec: &TaskSpec| of(spec, Isolation::Sandbox, false);
        assert_eq!(
            place(&spec(Isolation::Process, false, "none")),
            Ok(IsolationSite::Raised(SandboxConfig::default()))
        );
        let whole = SandboxConfig {
            network: "example.org:443".parse().unwrap(),
            ..SandboxConfig::default()
        };
        assert_eq!(
            place(&spec(Isolation::Sandbox, true, "example.org:443")),
            Ok(IsolationSite::Asked(whole))
        );
        for network in ["host", "127.0.0.1:6379", "example.org:443,[::1]:80"] {
            let refused = place(&spec(Isolation::Sandbox, false, network))
                .unwrap_err()
                .to_string();
            assert!(refused.contains("its host's network"), "{refused}");
        }
        assert!(place(&spec(Isolation::Docker, false, "none")).is_err());
        let mounts = vec!["/home:/data".parse().unwrap()];
        let curious = TaskSpec {
            mounts,
            ..spec(Isolation::Sandbox, false, "none")
        };
        assert!(of(&curious, Isolation::Process, false).is_ok());
        assert!(
            place(&curious)
                .unwrap_err()
                .to_string()
                .contains("leave out mounts")
        );
        assert!(
            of(&curious, Isolation::Docker, true)
                .unwrap_err()
                .to_string()
                .contains("leave out mounts")
        );
    }

    #[test]
    fn a_container_is_there_where_an_image_is() {
        let place = |spec: &TaskSpec, least| of(spec, least, true);
        let (none, host) = (
            IsolationSite::Contained {
                is_in_host_network: false,
            },
            IsolationSite::Contained {
                is_in_host_network: true,
            },
        );
        let asked = |network| spec(Isolation::Docker, false, network);
        assert_eq!(
            place(&asked("none"), Isolation::Process).as_ref(),
            Ok(&none)
        );
        assert_eq!(place(&asked("host"), Isolation::Process), Ok(host));
        assert!(
            place(&asked("host"), Isolation::Sandbox)
                .unwrap_err()
                .to_string()
                .contains("its host's network")
        );
        assert!(
            place(&asked("example.org:443"), Isolation::Process)
                .unwrap_err()
                .to_string()
                .contains("'sandbox'")
        );
        let cwd = |isolation| TaskSpec {
            cwd: Some("/x".into()),
            ..spec(isolation, false, "none")
        };
        assert!(
            place(&cwd(Isolation::Docker), Isolation::Process)
                .unwrap_err()
                .to_string()
                .contains("cwd")
        );
        assert_eq!(
            place(&cwd(Isolation::Process), Isolation::Docker).as_ref(),
            Ok(&none),
            "it is raised"
        );
        assert_eq!(
            place(&spec(Isolation::Sandbox, true, "none"), Isolation::Docker),
            Ok(none)
        );
        let routine = TaskSpec {
            isolation: Some(Isolation::Docker),
            ..TaskSpec::new(Target::Routine("r".into()))
        };
        assert!(
            place(&routine, Isolation::Process)
                .unwrap_err()
                .to_string()
                .contains("only commands")
        );
    }

    #[test]
    fn what_can_be_asked_of_every_task_is_named() {
        assert_eq!(
            (minimum("process"), minimum("sandbox")),
            (Ok(Isolation::Process), Ok(Isolation::Sandbox))
        );
        assert_eq!(minimum("docker"), Ok(Isolation::Docker));
        for text in ["", "Docker", "Sandbox", "vm"] {
            assert!(
                minimum(text)
                    .unwrap_err()
                    .to_string()
                    .contains("say 'shared', 'process', 'sandbox' or 'docker'")
            );
        }
    }
}
