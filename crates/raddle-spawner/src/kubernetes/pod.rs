//! What the API says of a pod, and what that means. Pure.

use std::collections::BTreeMap;

use raddle_model::Tid;
use serde::Deserialize;

use raddle_container::{ExitKind, LaunchError, LaunchFailure, one_line};

use super::{super::class::SPAWNER, template::WORKER};

/// A pod, as far as it matters here. Everything may be missing.
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

/// What has become of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodFate {
    /// It is on its way, and this is what it waits for, if that is worth a word.
    Waits(Option<String>),
    Runs,
    /// It will never be a worker.
    Stuck(LaunchError),
    Over(PodExit),
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodExit {
    pub(super) gone: ExitKind,
    /// What its worker has left word of.
    pub(super) word: TerminationMessage,
}

/// What a worker has left word of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TerminationMessage {
    /// That it was registered, and whether it had a task.
    Worked { tid: Tid, begun: bool },
    /// It was not registered, or nobody knows; and what it said last.
    Else(String),
}

impl Pod {
    /// The spawner that has made it.
    pub(super) fn spawner(&self) -> Option<Tid> {
        self.metadata.labels.get(SPAWNER)?.parse().ok()
    }

    /// Whether it was told to leave, by whomever.
    pub(super) fn is_leaving(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    pub(super) fn fate(&self) -> PodFate {
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
                "StartError" | "ContainerCannotRun" => PodFate::Stuck(no_worker(worker, message)),
                _ => PodFate::Over(PodExit {
                    gone: ended(*exit_code, reason, is_put_out),
                    word: TerminationMessage::of(message),
                }),
            };
        }
        match phase.as_str() {
            "Succeeded" | "Failed" if is_put_out => PodFate::Over(PodExit {
                gone: ExitKind::Evicted,
                word: TerminationMessage::Else(one_line(message)),
            }),
            // A node that was given a pod, and would not have it.
            "Failed" if !reason.is_empty() => {
                let reason = format!(
                    "a node refused a pod: {}: {}",
                    one_line(reason),
                    one_line(message)
                );
                PodFate::Stuck(LaunchError::new(LaunchFailure::ResourcesExhausted, reason))
            }
            "Succeeded" | "Failed" => PodFate::Over(PodExit {
                gone: ExitKind::Unknown,
                word: TerminationMessage::Else(one_line(message)),
            }),
            _ => match worker {
                Some(ContainerStatus {
                    state:
                        ContainerState {
                            running: Some(_), ..
                        },
                    ..
                }) => PodFate::Runs,
                Some(worker) => worker.waits(),
                None => PodFate::Waits(self.unscheduled()),
            },
        }
    }

    /// Why no node has it.
    fn unscheduled(&self) -> Option<String> {
        let refused = |condition: &&Condition| {
            condition.kind == "PodScheduled" && condition.status == "False"
        };
        let condition = self.status.conditions.iter().find(refused)?;
        Some(format!(
            "no node takes it: {}",
            one_line(&condition.message)
        ))
    }
}

impl ContainerStatus {
    fn waits(&self) -> PodFate {
        let Some(ContainerWaiting { reason, message }) = &self.state.waiting else {
            return PodFate::Waits(None);
        };
        let message = if message.is_empty() { reason } else { message };
        match reason.as_str() {
            "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
                let image = one_line(&self.image);
                let reason = format!(
                    "the image '{image}' cannot be had ({}): {}",
                    one_line(reason),
                    one_line(message)
                );
                PodFate::Stuck(LaunchError::new(LaunchFailure::Image, reason))
            }
            // The first try of several.
            "ErrImagePull" => PodFate::Waits(Some(one_line(message))),
            "RunContainerError" => PodFate::Stuck(no_worker(Some(self), message)),
            "CreateContainerConfigError" | "CreateContainerError" => {
                let reason = format!(
                    "a pod cannot be made as it should be ({}): {}",
                    one_line(reason),
                    one_line(message)
                );
                PodFate::Stuck(LaunchError::new(LaunchFailure::Refused, reason))
            }
            _ => PodFate::Waits(None),
        }
    }
}

impl TerminationMessage {
    /// Its id first, and then a line when it has its task; or what it said last, if it never came to that.
    fn of(message: &str) -> Self {
        let mut lines = message
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        match lines.next().and_then(|first| first.parse().ok()) {
            Some(tid) => Self::Worked {
                tid,
                begun: lines.next().is_some(),
            },
            None => Self::Else(one_line(message)),
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
        "the image '{image}' does not hold this program as its entrypoint ({})",
        one_line(message)
    );
    LaunchError::new(LaunchFailure::Image, reason)
}

fn ended(code: i32, reason: &str, is_put_out: bool) -> ExitKind {
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

    fn fate(status: Value) -> PodFate {
        let pod =
            json!({ "metadata": { "name": "x", "labels": { SPAWNER: TID } }, "status": status });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(pod.spawner(), Some(TID.parse().unwrap()));
        pod.fate()
    }

    fn worker(state: Value) -> PodFate {
        let sidecar = json!({ "name": "sidecar", "state": { "running": {} } });
        let worker = json!({ "name": "worker", "image": "some/image:1", "state": state });
        fate(json!({ "phase": "Running", "containerStatuses": [sidecar, worker] }))
    }

    fn ended_as(terminated: Value) -> ExitKind {
        match worker(json!({ "terminated": terminated })) {
            PodFate::Over(over) => over.gone,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pod_starts_runs_and_ends() {
        assert_eq!(fate(json!({})), PodFate::Waits(None));
        let refused = json!([{ "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" }]);
        let why = "no node takes it: 0/3 nodes are available".to_owned();
        assert_eq!(
            fate(json!({ "phase": "Pending", "conditions": refused })),
            PodFate::Waits(Some(why))
        );
        assert_eq!(
            worker(json!({ "waiting": { "reason": "ContainerCreating" } })),
            PodFate::Waits(None)
        );
        assert_eq!(
            worker(json!({ "running": { "startedAt": "2026-11-16T12:00:00Z" } })),
            PodFate::Runs
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
            PodFate::Over(PodExit {
                gone: ExitKind::Evicted,
                word: TerminationMessage::Else("low on memory".into())
            })
        );
    }

    #[test]
    fn what_will_never_be_a_worker_is_named() {
        for (reason, obstacle, words) in [
            (
                "ImagePullBackOff",
                LaunchFailure::Image,
                "'some/image:1' cannot be had",
            ),
            (
                "InvalidImageName",
                LaunchFailure::Image,
                "'some/image:1' cannot be had",
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
            let PodFate::Stuck(error) = worker(waiting) else {
                panic!("{reason} is the end")
            };
            assert!(
                error.kind == obstacle && error.to_string().contains(words),
                "{reason}: {error}"
            );
        }
        let start = json!({ "terminated": { "exitCode": 128, "reason": "StartError", "message": "exec: not found" } });
        assert!(
            matches!(worker(start), PodFate::Stuck(error) if error.kind == LaunchFailure::Image)
        );
        let node = fate(json!({ "phase": "Failed", "reason": "OutOfcpu", "message": "no" }));
        assert!(
            matches!(node, PodFate::Stuck(error) if error.kind == LaunchFailure::ResourcesExhausted)
        );
        let first = json!({ "waiting": { "reason": "ErrImagePull", "message": "a hiccup" } });
        assert_eq!(worker(first), PodFate::Waits(Some("a hiccup".into())));
    }

    #[test]
    fn the_last_word_says_whether_it_worked() {
        let tid = TID.parse().unwrap();
        assert_eq!(
            TerminationMessage::of(&format!("{TID}\n")),
            TerminationMessage::Worked { tid, begun: false }
        );
        assert_eq!(
            TerminationMessage::of(&format!("{TID}\nbegun\n")),
            TerminationMessage::Worked { tid, begun: true }
        );
        assert_eq!(
            TerminationMessage::of("raddle: no broker\n"),
            TerminationMessage::Else("raddle: no broker".into())
        );
        assert_eq!(
            TerminationMessage::of(""),
            TerminationMessage::Else(String::new())
        );
    }
}
