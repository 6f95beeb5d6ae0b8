//! What a Kubernetes cluster is asked for: the table `[spawner.kubernetes]`. Values only.

use std::{path::PathBuf, time::Duration};

use raddle_model::HumanDuration;
use serde::Deserialize;

use super::config::{ConfigError, error_at};

/// What a cluster is asked for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ClusterConfig {
    /// The namespace of the pods, if it is not that of the spawner's own.
    pub namespace: Option<String>,
    /// The API server, if the spawner is no pod of the cluster.
    pub server: Option<String>,
    /// The certificate of who vouches for that server.
    pub ca_file: Option<PathBuf>,
    /// A file with the token that it knows us by. It is read anew for every call.
    pub token_file: Option<PathBuf>,
    /// The Secret in which workers find the queue URL.
    pub queue_secret: Option<String>,
    /// The key in that Secret.
    pub queue_secret_key: String,
    /// A file that is laid over the pods that we make.
    pub template: Option<PathBuf>,
    /// How long a pod may take to run.
    pub start_within: HumanDuration,
    /// How long a worker that is told to stop may take to finish its task.
    pub grace: HumanDuration,
}

const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// As the API has it for what becomes part of host names, and for what need not.
const LONGEST_LABEL: usize = 63;
const LONGEST_NAME: usize = 253;

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            namespace: None,
            server: None,
            ca_file: None,
            token_file: None,
            queue_secret: None,
            queue_secret_key: "QUEUE_URL".into(),
            template: None,
            // A cluster that grows by a machine takes some minutes to do so.
            start_within: HumanDuration::secs(300),
            // What takes longer is run again when a node is emptied.
            grace: HumanDuration::secs(3600),
        }
    }
}

impl ClusterConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if let Some(wrong) = self
            .namespace
            .as_deref()
            .filter(|name| !is_name(name, LONGEST_LABEL, "-"))
        {
            let reason = format!("'{}' is not the name of a namespace", wrong.escape_debug());
            return Err(error_at("kubernetes.namespace", reason));
        }
        let key = &self.queue_secret_key;
        if !key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            || key.is_empty()
        {
            return Err(error_at(
                "kubernetes.queue_secret_key",
                "it is not the key of a Secret",
            ));
        }
        if self
            .queue_secret
            .as_deref()
            .is_some_and(|name| !is_name(name, LONGEST_NAME, "-."))
        {
            // It is not repeated: it may be the URL itself, with its password.
            let reason = "it is not the name of a Secret: give its name, not what is in it";
            return Err(error_at("kubernetes.queue_secret", reason));
        }
        for (key, HumanDuration(time)) in
            [("start_within", self.start_within), ("grace", self.grace)]
        {
            if time < Duration::from_secs(1) || time > LONGEST {
                return Err(error_at(
                    &format!("kubernetes.{key}"),
                    "it is not between a second and a week",
                ));
            }
        }
        Ok(())
    }
}

/// What the API takes for a name.
fn is_name(name: &str, longest: usize, also: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= longest
        && name.starts_with(is_plain)
        && name.ends_with(is_plain)
        && name.chars().all(|c| is_plain(c) || also.contains(c))
}
