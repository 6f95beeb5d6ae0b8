//! What the API says of a pod, and what that means. Pure.

use std::collections::BTreeMap;

use raddle_core::Tid;
use serde::Deserialize;

use super::{
    super::{
        class::SPAWNER,
        launcher::{Gone, LaunchError, Obstacle, one_line},
    },
    template::WORKER,
};

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
    state: State,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    waiting: Option<Waiting>,
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: String,
    message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    reason: String,
    message: String,
}

/// What has become of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is on its way, and this is what it waits for, if that is worth a word.
    Waits(Option<String>),
    Runs,
    /// It will never be a worker.
    Stuck(LaunchError),
    Over(Over),
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Over {
    pub(super) gone: Gone,
    /// What its worker has left word of.
    pub(super) word: Word,
}

/// What a worker has left word of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
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

    pub(super) fn fate(&self) -> Fate {
        let PodStatus { phase, reason, message, .. } = &self.status;
        let worker = self.status.container_statuses.iter().find(|container| container.name == WORKER);
        let is_put_out = reason == "Evicted" || reason == "Preempting";
        if let Some(Terminated { exit_code, reason, message }) =
            worker.and_then(|worker| worker.state.terminated.as_ref())
        {
            return match reason.as_str() {
                "StartError" | "ContainerCannotRun" => Fate::Stuck(no_worker(worker, message)),
                _ => Fate::Over(Over { gone: ended(*exit_code, reason, is_put_out), word: Word::of(message) }),
            };
        }
        match phase.as_str() {
            "Succeeded" | "Failed" if is_put_out => {
                Fate::Over(Over { gone: Gone::Evicted, word: Word::Else(one_line(message)) })
            }
            // A node that was given a pod, and would not have it.
            "Failed" if !reason.is_empty() => {
                let reason = format!("a node refused a pod: {}: {}", one_line(reason), one_line(message));
                Fate::Stuck(LaunchError::new(Obstacle::Starved, reason))
            }
            "Succeeded" | "Failed" => Fate::Over(Over { gone: Gone::Untold, word: Word::Else(one_line(message)) }),
            _ => match worker {
                Some(ContainerStatus { state: State { running: Some(_), .. }, .. }) => Fate::Runs,
                Some(worker) => worker.waits(),
                None => Fate::Waits(self.unscheduled()),
            },
        }
    }

    /// Why no node has it.
    fn unscheduled(&self) -> Option<String> {
        let refused = |condition: &&Condition| condition.kind == "PodScheduled" && condition.status == "False";
        let condition = self.status.conditions.iter().find(refused)?;
        Some(format!("no node takes it: {}", one_line(&condition.message)))
    }
}

impl ContainerStatus {
    fn waits(&self) -> Fate {
        let Some(Waiting { reason, message }) = &self.state.waiting else { return Fate::Waits(None) };
        let message = if message.is_empty() { reason } else { message };
        match reason.as_str() {
            "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" => {
                let image = one_line(&self.image);
                let reason = format!("the image '{image}' cannot be had ({}): {}", one_line(reason), one_line(message));
                Fate::Stuck(LaunchError::new(Obstacle::Image, reason))
            }
            // The first try of several.
            "ErrImagePull" => Fate::Waits(Some(one_line(message))),
            "RunContainerError" => Fate::Stuck(no_worker(Some(self), message)),
            "CreateContainerConfigError" | "CreateContainerError" => {
                let reason =
                    format!("a pod cannot be made as it should be ({}): {}", one_line(reason), one_line(message));
                Fate::Stuck(LaunchError::new(Obstacle::Refused, reason))
            }
            _ => Fate::Waits(None),
        }
    }
}

impl Word {
    /// Its id first, and then a line when it has its task; or what it said last, if it never came to that.
    fn of(message: &str) -> Self {
        let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
        match lines.next().and_then(|first| first.parse().ok()) {
            Some(tid) => Self::Worked { tid, begun: lines.next().is_some() },
            None => Self::Else(one_line(message)),
        }
    }
}

fn no_worker(worker: Option<&ContainerStatus>, message: &str) -> LaunchError {
    let image = one_line(worker.map(|worker| worker.image.as_str()).unwrap_or_default());
    let reason = format!("the image '{image}' does not hold this program as its entrypoint ({})", one_line(message));
    LaunchError::new(Obstacle::Image, reason)
}

fn ended(code: i32, reason: &str, is_put_out: bool) -> Gone {
    match code {
        _ if reason == "OOMKilled" => Gone::OutOfMemory,
        0 => Gone::Code(0),
        _ if is_put_out => Gone::Evicted,
        code => Gone::of_exit_code(code),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const TID: &str = "1794800817069096960";

    fn fate(status: Value) -> Fate {
        let pod = json!({ "metadata": { "name": "x", "labels": { SPAWNER: TID } }, "status": status });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(pod.spawner(), Some(TID.parse().unwrap()));
        pod.fate()
    }

    fn worker(state: Value) -> Fate {
        let sidecar = json!({ "name": "sidecar", "state": { "running": {} } });
        let worker = json!({ "name": "worker", "image": "some/image:1", "state": state });
        fate(json!({ "phase": "Running", "containerStatuses": [sidecar, worker] }))
    }

    fn ended_as(terminated: Value) -> Gone {
        match worker(json!({ "terminated": terminated })) {
            Fate::Over(over) => over.gone,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pod_starts_runs_and_ends() {
        assert_eq!(fate(json!({})), Fate::Waits(None));
        let refused = json!([{ "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" }]);
        let why = "no node takes it: 0/3 nodes are available".to_owned();
        assert_eq!(fate(json!({ "phase": "Pending", "conditions": refused })), Fate::Waits(Some(why)));
        assert_eq!(worker(json!({ "waiting": { "reason": "ContainerCreating" } })), Fate::Waits(None));
        assert_eq!(worker(json!({ "running": { "startedAt": "2026-11-16T12:00:00Z" } })), Fate::Runs);
        assert_eq!(ended_as(json!({ "exitCode": 0, "reason": "Completed" })), Gone::Code(0));
        assert_eq!(ended_as(json!({ "exitCode": 1, "reason": "Error" })), Gone::Code(1));
        assert_eq!(ended_as(json!({ "exitCode": 137, "reason": "Error" })), Gone::Signal(9));
        assert_eq!(ended_as(json!({ "exitCode": 137, "reason": "OOMKilled" })), Gone::OutOfMemory);
        let evicted = fate(json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" }));
        assert_eq!(evicted, Fate::Over(Over { gone: Gone::Evicted, word: Word::Else("low on memory".into()) }));
    }

    #[test]
    fn what_will_never_be_a_worker_is_named() {
        for (reason, obstacle, words) in [
            ("ImagePullBackOff", Obstacle::Image, "'some/image:1' cannot be had"),
            ("InvalidImageName", Obstacle::Image, "'some/image:1' cannot be had"),
            ("RunContainerError", Obstacle::Image, "as its entrypoint"),
            ("CreateContainerConfigError", Obstacle::Refused, "secret \"queue\" not found"),
        ] {
            let waiting = json!({ "waiting": { "reason": reason, "message": "secret \"queue\" not found" } });
            let Fate::Stuck(error) = worker(waiting) else { panic!("{reason} is the end") };
            assert!(error.obstacle == obstacle && error.to_string().contains(words), "{reason}: {error}");
        }
        let start = json!({ "terminated": { "exitCode": 128, "reason": "StartError", "message": "exec: not found" } });
        assert!(matches!(worker(start), Fate::Stuck(error) if error.obstacle == Obstacle::Image));
        let node = fate(json!({ "phase": "Failed", "reason": "OutOfcpu", "message": "no" }));
        assert!(matches!(node, Fate::Stuck(error) if error.obstacle == Obstacle::Starved));
        let first = json!({ "waiting": { "reason": "ErrImagePull", "message": "a hiccup" } });
        assert_eq!(worker(first), Fate::Waits(Some("a hiccup".into())));
    }

    #[test]
    fn the_last_word_says_whether_it_worked() {
        let tid = TID.parse().unwrap();
        assert_eq!(Word::of(&format!("{TID}\n")), Word::Worked { tid, begun: false });
        assert_eq!(Word::of(&format!("{TID}\nbegun\n")), Word::Worked { tid, begun: true });
        assert_eq!(Word::of("raddle: no broker\n"), Word::Else("raddle: no broker".into()));
        assert_eq!(Word::of(""), Word::Else(String::new()));
    }
}
