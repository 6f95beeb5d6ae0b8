//! `Pod`: what the API reports about a pod, and what that means. Pure.

use std::collections::BTreeMap;

use raddle_model::Tid;
use serde::Deserialize;

use raddle_container::{ExitKind, LaunchError, LaunchFailure, one_line};

use super::{super::class::SPAWNER, template::WORKER};

/// The fields of a pod that matter here. All are optional.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) metadata: Metadata,
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) resource_version: String,
    labels: BTreeMap<String, String>,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    reason: String,
    message: String,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    name: String,
    image: String,
    state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<ContainerWaiting>,
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<ContainerTerminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerWaiting {
    reason: String,
    message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerTerminated {
    exit_code: i32,
    reason: String,
    message: String,
}

/// The state of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodPhase {
    /// It is starting. The text says what it waits for, if that is worth logging.
    Waiting(Option<String>),
    Running,
    /// It will never become a worker.
    Failed(LaunchError),
    Ended(PodExit),
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodExit {
    pub(super) exit: ExitKind,
    /// The termination message of its worker.
    pub(super) message: TerminationMessage,
}

/// The termination message of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TerminationMessage {
    /// It was registered, and whether it had a task.
    Worker { tid: Tid, begun: bool },
    /// It was not registered, as far as known. The text is its last output.
    Other(String),
}

impl Pod {
    /// The spawner that created it.
    pub(super) fn spawner(&self) -> Option<Tid> {
        self.metadata.labels.get(SPAWNER)?.parse().ok()
    }

    /// Whether it is being deleted.
    pub(super) fn is_leaving(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    pub(super) fn phase(&self) -> PodPhase {
        let PodStatus {
            phase,
            reason,
            message,
            ..
        } = &self.status;
        let worker = self
            .status
            .container_statuses
            .iter()
            .find(|container| container.name == WORKER);
        let is_put_out = reason == "Evicted" || reason == "Preempting";
        if let Some(ContainerTerminated {
            exit_code,
            reason,
            message,
        }) = worker.and_then(|worker| worker.state.terminated.as_ref())
        {
            return match reason.as_str() {
                "StartError" | "ContainerCannotRun" => PodPhase::Failed(no_worker(worker, message)),
                _ => PodPhase::Ended(PodExit {
                    exit: exit_kind(*exit_code, reason, is_put_out),
                    message: TerminationMessage::parse(message),
                }),
            };
        }
        match phase.as_str() {
            "Succeeded" | "Failed" if is_put_out => PodPhase::Ended(PodExit {
                exit: ExitKind::Evicted,
                message: TerminationMessage::Other(one_line(message)),
            }),
            // The node rejected the pod.
            "Failed" if !reason.is_empty() => {
                let reason = format!(
                    "a node refused a pod: {}: {}",
                    one_line(reason),
                    one_line(message)
                );
                PodPhase::Failed(LaunchError::new(LaunchFailure::ResourcesExhausted, reason))
            }
            "Succeeded" | "Failed" => PodPhase::Ended(PodExit {
                exit: ExitKind::Unknown,
                message: TerminationMessage::Other(one_line(message)),
            }),
            _ => match worker {
                Some(ContainerStatus {
                    state:
                        ContainerState {
                            running: Some(_), ..
                        },
                    ..
                }) => PodPhase::Running,
                Some(worker) => worker.waits(),
                None => PodPhase::Waiting(self.unscheduled()),
            },
        }
    }

    /// Why no node accepts it.
    fn unscheduled(&self) -> Option<String> {
        let refused = |condition: &&Condition| {
            condition.kind == "PodScheduled" && condition.status == "False"
        };
        let condition = self.status.conditions.iter().find(refused)?;
        Some(format!(
            "no node accepts it: {}",
            one_line(&condition.message)
        ))
    }
}

impl ContainerStatus {
    fn waits(&self) -> PodPhase {
        let Some(ContainerWaiting { reason, message }) = &self.state.waiting else {
            return PodPhase::Waiting(None);
        };
        let message = if message.is_empty() { reason } else { message };
        match reason.as_str() {
            "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
                let image = one_line(&self.image);
                let reason = format!(
                    "the image '{image}' cannot be pulled ({}): {}",
                    one_line(reason),
                    one_line(message)
                );
                PodPhase::Failed(LaunchError::new(LaunchFailure::Image, reason))
            }
            // The first of several tries.
            "ErrImagePull" => PodPhase::Waiting(Some(one_line(message))),
            "RunContainerError" => PodPhase::Failed(no_worker(Some(self), message)),
            "CreateContainerConfigError" | "CreateContainerError" => {
                let reason = format!(
                    "a pod cannot be created as configured ({}): {}",
                    one_line(reason),
                    one_line(message)
                );
                PodPhase::Failed(LaunchError::new(LaunchFailure::Refused, reason))
            }
            _ => PodPhase::Waiting(None),
        }
    }
}

impl TerminationMessage {
    /// Parses a termination message: the worker id, then a line if it had a task; or its last
    /// output.
    fn parse(message: &str) -> Self {
        let mut lines = message
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        match lines.next().and_then(|first| first.parse().ok()) {
            Some(tid) => Self::Worker {
                tid,
                begun: lines.next().is_some(),
            },
            None => Self::Other(one_line(message)),
        }
    }
}

fn no_worker(worker: Option<&ContainerStatus>, message: &str) -> LaunchError {
    let image = one_line(
        worker
            .map(|worker| worker.image.as_str())
            .unwrap_or_default(),
    );
    let reason = format!(
        "the image '{image}' does not have this program as its entrypoint ({})",
        one_line(message)
    );
    LaunchError::new(LaunchFailure::Image, reason)
}

fn exit_kind(code: i32, reason: &str, is_put_out: bool) -> ExitKind {
    match code {
        _ if reason == "OOMKilled" => ExitKind::OutOfMemory,
        0 => ExitKind::Code(0),
        _ if is_put_out => ExitKind::Evicted,
        code => ExitKind::from_exit_code(code),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const TID: &str = "1794800817069096960";

    fn fate(status: Value) -> PodPhase {
        let pod =
            json!({ "metadata": { "name": "x", "labels": { SPAWNER: TID } }, "status": status });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(pod.spawner(), Some(TID.parse().unwrap()));
        pod.phase()
    }

    fn worker(state: Value) -> PodPhase {
        let sidecar = json!({ "name": "sidecar", "state": { "running": {} } });
        let worker = json!({ "name": "worker", "image": "some/image:1", "state": state });
        fate(json!({ "phase": "Running", "containerStatuses": [sidecar, worker] }))
    }

    fn ended_as(terminated: Value) -> ExitKind {
        match worker(json!({ "terminated": terminated })) {
            PodPhase::Ended(over) => over.exit,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn follows_a_pod_from_start_to_end() {
        assert_eq!(fate(json!({})), PodPhase::Waiting(None));
        let refused = json!([{ "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" }]);
        let why = "no node accepts it: 0/3 nodes are available".to_owned();
        assert_eq!(
            fate(json!({ "phase": "Pending", "conditions": refused })),
            PodPhase::Waiting(Some(why))
        );
        assert_eq!(
            worker(json!({ "waiting": { "reason": "ContainerCreating" } })),
            PodPhase::Waiting(None)
        );
        assert_eq!(
            worker(json!({ "running": { "startedAt": "2026-11-16T12:00:00Z" } })),
            PodPhase::Running
        );
        assert_eq!(
            ended_as(json!({ "exitCode": 0, "reason": "Completed" })),
            ExitKind::Code(0)
        );
        assert_eq!(
            ended_as(json!({ "exitCode": 1, "reason": "Error" })),
            ExitKind::Code(1)
        );
        assert_eq!(
            ended_as(json!({ "exitCode": 137, "reason": "Error" })),
            ExitKind::Signal(9)
        );
        assert_eq!(
            ended_as(json!({ "exitCode": 137, "reason": "OOMKilled" })),
            ExitKind::OutOfMemory
        );
        let evicted =
            fate(json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" }));
        assert_eq!(
            evicted,
            PodPhase::Ended(PodExit {
                exit: ExitKind::Evicted,
                message: TerminationMessage::Other("low on memory".into())
            })
        );
    }

    #[test]
    fn names_why_a_pod_will_never_be_a_worker() {
        for (reason, obstacle, words) in [
            (
                "ImagePullBackOff",
                LaunchFailure::Image,
                "'some/image:1' cannot be pulled",
            ),
            (
                "InvalidImageName",
                LaunchFailure::Image,
                "'some/image:1' cannot be pulled",
            ),
            (
                "RunContainerError",
                LaunchFailure::Image,
                "as its entrypoint",
            ),
            (
                "CreateContainerConfigError",
                LaunchFailure::Refused,
                "secret \"queue\" not found",
            ),
        ] {
            let waiting =
                json!({ "waiting": { "reason": reason, "message": "secret \"queue\" not found" } });
            let PodPhase::Failed(error) = worker(waiting) else {
                panic!("{reason} is final")
            };
            assert!(
                error.kind == obstacle && error.to_string().contains(words),
                "{reason}: {error}"
            );
        }
        let start = json!({ "terminated": { "exitCode": 128, "reason": "StartError", "message": "exec: not found" } });
        assert!(
            matches!(worker(start), PodPhase::Failed(error) if error.kind == LaunchFailure::Image)
        );
        let node = fate(json!({ "phase": "Failed", "reason": "OutOfcpu", "message": "no" }));
        assert!(
            matches!(node, PodPhase::Failed(error) if error.kind == LaunchFailure::ResourcesExhausted)
        );
        let first = json!({ "waiting": { "reason": "ErrImagePull", "message": "a hiccup" } });
        assert_eq!(worker(first), PodPhase::Waiting(Some("a hiccup".into())));
    }

    #[test]
    fn parses_termination_messages() {
        let tid = TID.parse().unwrap();
        assert_eq!(
            TerminationMessage::parse(&format!("{TID}\n")),
            TerminationMessage::Worker { tid, begun: false }
        );
        assert_eq!(
            TerminationMessage::parse(&format!("{TID}\nbegun\n")),
            TerminationMessage::Worker { tid, begun: true }
        );
        assert_eq!(
            TerminationMessage::parse("raddle: no broker\n"),
            TerminationMessage::Other("raddle: no broker".into())
        );
        assert_eq!(
            TerminationMessage::parse(""),
            TerminationMessage::Other(String::new())
        );
    }
}
