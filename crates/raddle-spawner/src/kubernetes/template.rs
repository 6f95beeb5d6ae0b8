//! `PodTemplate`: the pods that are created. Pure.

use std::time::Duration;

use raddle_model::Tid;
use serde_json::{Value, json};

use super::{
    super::{
        ContainerLimits, Gpus, SPAWNER_VARIABLE, WorkerClass,
        class::{CLASS, SPAWNER},
    },
    overlay::PodOverlay,
};

/// How pods are created. It contains no secrets: anyone who can read pods sees everything.
#[derive(Clone, Debug)]
pub struct PodTemplate {
    /// The image. Its entrypoint must be this program.
    pub image: String,
    /// Their class.
    pub class: WorkerClass,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// Its environment, without the queue URL.
    pub env: Vec<(String, String)>,
    /// How workers find the broker.
    pub queue: QueueAccess,
    /// Annotations, for values that are no valid labels.
    pub annotations: Vec<(String, String)>,
    /// Limits of a pod.
    pub limits: ContainerLimits,
    /// How long a stopping worker may take to finish its task.
    pub grace: Duration,
    /// How long a pod may take to start.
    pub start_within: Duration,
    /// The user's overlay.
    pub overlay: PodOverlay,
}

/// How a worker finds the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueAccess {
    /// By a URL without secrets.
    Open(String),
    /// By a URL in a Secret.
    Secret {
        /// The Secret.
        name: String,
        /// The key.
        key: String,
    },
}

/// Name of the worker's container.
pub(super) const WORKER: &str = "worker";
/// File for the termination message, which the cluster keeps after the end.
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// An unprivileged user.
const NONROOT_UID: u32 = 65532;
const TMP: &str = "/tmp";

impl PodTemplate {
    /// A pod with this name, for this spawner.
    pub(super) fn build_pod(&self, name: &str, spawner: Tid) -> Value {
        let mut pod = self.base_pod(spawner);
        self.overlay.apply_to(&mut pod);
        // The pod is found by these, so the overlay cannot change them.
        let metadata = &mut pod["metadata"];
        metadata["name"] = name.into();
        metadata["labels"][CLASS] = self.class.as_str().into();
        metadata["labels"][SPAWNER] = spawner.to_string().into();
        pod["spec"]["restartPolicy"] = "Never".into();
        pod
    }

    fn base_pod(&self, spawner: Tid) -> Value {
        let annotations = self
            .annotations
            .iter()
            .map(|(key, value)| (key.clone(), Value::from(value.as_str())));
        let ContainerLimits { tmp_mb, .. } = self.limits;
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "labels": {
                    "app.kubernetes.io/name": "raddle-worker",
                    "app.kubernetes.io/managed-by": "raddle-spawner",
                },
                "annotations": annotations.collect::<serde_json::Map<_, _>>(),
            },
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": self.grace.as_secs(),
                // A worker does not use the API.
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "securityContext": {
                    "runAsNonRoot": true,
                    "runAsUser": NONROOT_UID,
                    "runAsGroup": NONROOT_UID,
                    "fsGroup": NONROOT_UID,
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
                "containers": [{
                    "name": WORKER,
                    "image": self.image,
                    "args": self.args,
                    "env": self.env(spawner),
                    "workingDir": TMP,
                    "resources": { "limits": self.limits() },
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "privileged": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": { "drop": ["ALL"] },
                    },
                    "terminationMessagePath": TERMINATION_LOG,
                    // For a pod that never became a worker, the end of its log becomes the message.
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [{ "name": "tmp", "mountPath": TMP }],
                }],
                // In memory, as in other containers: it counts as memory of the pod, and ends with
                // it.
                "volumes": [{ "name": "tmp", "emptyDir": { "medium": "Memory", "sizeLimit": format!("{tmp_mb}Mi") } }],
            },
        })
    }

    fn env(&self, spawner: Tid) -> Vec<Value> {
        let queue = match &self.queue {
            QueueAccess::Open(url) => json!({ "name": "QUEUE_URL", "value": url }),
            QueueAccess::Secret { name, key } => {
                json!({ "name": "QUEUE_URL", "valueFrom": { "secretKeyRef": { "name": name, "key": key } } })
            }
        };
        let others = self
            .env
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": value }));
        let spawner = json!({ "name": SPAWNER_VARIABLE, "value": spawner.to_string() });
        std::iter::once(queue)
            .chain(others)
            .chain([spawner])
            .collect()
    }

    /// Requests equal limits: the pod is guaranteed all of it, and evicted last.
    fn limits(&self) -> Value {
        let ContainerLimits {
            memory_mb,
            cpus,
            gpus,
            ..
        } = &self.limits;
        let mut limits = json!({ "cpu": format!("{}m", (cpus * 1000.0).ceil()), "memory": format!("{memory_mb}Mi") });
        if let Some(Gpus::Count(count)) = gpus {
            limits["nvidia.com/gpu"] = count.to_string().into();
        }
        limits
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn sample_template() -> PodTemplate {
        PodTemplate {
            image: "raddle".into(),
            class: WorkerClass::new(
                "redis://broker",
                &"cpu".parse().unwrap(),
                &["default".into()],
            ),
            args: vec!["worker".into(), "start".into()],
            env: vec![("WORKER_CAPS".into(), "cpu,docker".into())],
            queue: QueueAccess::Secret {
                name: "raddle-queue".into(),
                key: "QUEUE_URL".into(),
            },
            annotations: vec![("raddle.caps".into(), "cpu,docker".into())],
            limits: ContainerLimits::default(),
            grace: Duration::from_secs(60),
            start_within: Duration::from_secs(60),
            overlay: PodOverlay::default(),
        }
    }

    fn spawner() -> Tid {
        "1794800817069096960".parse().unwrap()
    }

    #[test]
    fn denies_everything_by_default() {
        let pod = sample_template().build_pod("raddle-x-1", spawner());
        let (spec, worker) = (&pod["spec"], &pod["spec"]["containers"][0]);
        assert_eq!(spec["restartPolicy"], "Never");
        assert_eq!(
            (
                &spec["automountServiceAccountToken"],
                &spec["enableServiceLinks"]
            ),
            (&json!(false), &json!(false))
        );
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(
            spec["securityContext"]["seccompProfile"],
            json!({ "type": "RuntimeDefault" })
        );
        let expected = json!({
            "allowPrivilegeEscalation": false,
            "privileged": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        });
        assert_eq!(worker["securityContext"], expected);
        assert_eq!(
            worker["resources"]["limits"],
            json!({ "cpu": "1000m", "memory": "1024Mi" })
        );
        assert_eq!(
            spec["volumes"][0]["emptyDir"],
            json!({ "medium": "Memory", "sizeLimit": "64Mi" })
        );
        assert_eq!(spec["hostNetwork"], Value::Null);
    }

    #[test]
    fn only_the_environment_contains_the_queue_url() {
        let open = PodTemplate {
            queue: QueueAccess::Open("redis://hidden".into()),
            ..sample_template()
        };
        let mut pod = open.build_pod("raddle-x-1", spawner());
        assert_eq!(
            pod["spec"]["containers"][0]["env"][0],
            json!({ "name": "QUEUE_URL", "value": "redis://hidden" })
        );
        pod["spec"]["containers"][0]["env"] = Value::Null;
        assert!(!pod.to_string().contains("hidden"));
        let reference = json!({ "secretKeyRef": { "name": "raddle-queue", "key": "QUEUE_URL" } });
        assert_eq!(
            sample_template().build_pod("x", spawner())["spec"]["containers"][0]["env"][0]["valueFrom"],
            reference
        );
    }

    #[test]
    fn labels_are_valid_and_overlays_cannot_change_ours() {
        let overlay = "metadata: {labels: {raddle.class: other, team: ml}}\nspec: {containers: [{name: worker, image: mine}]}";
        let pod = PodTemplate {
            overlay: PodOverlay::read(overlay).unwrap(),
            ..sample_template()
        }
        .build_pod("raddle-x-1", spawner());
        let labels = pod["metadata"]["labels"].as_object().unwrap();
        assert_eq!(labels[CLASS], sample_template().class.as_str());
        assert_eq!(
            (labels[SPAWNER].as_str(), labels["team"].as_str()),
            (Some("1794800817069096960"), Some("ml"))
        );
        let fits = |text: &str| {
            text.len() <= 63
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        assert!(labels.values().all(|value| fits(value.as_str().unwrap())));
        assert_eq!(pod["spec"]["containers"][0]["image"], "mine");
        assert!(
            pod["spec"].get("ownerReferences").is_none()
                && pod["metadata"].get("ownerReferences").is_none()
        );
    }

    #[test]
    fn applies_limits_and_gpus() {
        let limits = ContainerLimits {
            gpus: Some(Gpus::Count(2)),
            cpus: 0.5,
            ..ContainerLimits::default()
        };
        let pod = PodTemplate {
            limits,
            ..sample_template()
        }
        .build_pod("x", spawner());
        let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(
            (&limits["nvidia.com/gpu"], &limits["cpu"]),
            (&json!("2"), &json!("500m"))
        );
    }
}
