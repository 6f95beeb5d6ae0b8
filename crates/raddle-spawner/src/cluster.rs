//! `ClusterConfig`: the table `[spawner.kubernetes]`. Values only.

use std::{path::PathBuf, time::Duration};

use raddle_model::HumanDuration;
use serde::Deserialize;

use super::config::{ConfigError, error_at};

/// Settings for a Kubernetes cluster.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ClusterConfig {
    /// Namespace of the pods. Default: the spawner's own.
    pub namespace: Option<String>,
    /// The API server, for a spawner that is no pod of the cluster.
    pub server: Option<String>,
    /// CA certificate of that server.
    pub ca_file: Option<PathBuf>,
    /// File with the token for the server. It is read for each call.
    pub token_file: Option<PathBuf>,
    /// The Secret with the queue URL for workers.
    pub queue_secret: Option<String>,
    /// The key in that Secret.
    pub queue_secret_key: String,
    /// A file that is merged into each pod.
    pub template: Option<PathBuf>,
    /// How long a pod may take to start.
    pub start_within: HumanDuration,
    /// How long a stopping worker may take to finish its task.
    pub grace: HumanDuration,
}

const MAX_TIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// The API's limits for labels, which become part of host names, and for other names.
const MAX_LABEL: usize = 63;
const MAX_NAME: usize = 253;

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
            // Adding a machine to a cluster takes some minutes.
            start_within: HumanDuration::secs(300),
            // A task that takes longer runs again when its node is drained.
            grace: HumanDuration::secs(3600),
        }
    }
}

impl ClusterConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if let Some(invalid) = self
            .namespace
            .as_deref()
            .filter(|name| !is_name(name, MAX_LABEL, "-"))
        {
            let reason = format!("'{}' is no name of a namespace", invalid.escape_debug());
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
                "it is no key of a Secret",
            ));
        }
        if self
            .queue_secret
            .as_deref()
            .is_some_and(|name| !is_name(name, MAX_NAME, "-."))
        {
            // Not repeated in the message: it may be the URL itself, with its password.
            let reason = "it is no name of a Secret: give its name, not its contents";
            return Err(error_at("kubernetes.queue_secret", reason));
        }
        for (key, HumanDuration(time)) in
            [("start_within", self.start_within), ("grace", self.grace)]
        {
            if time < Duration::from_secs(1) || time > MAX_TIME {
                return Err(error_at(
                    &format!("kubernetes.{key}"),
                    "it must be between a second and a week",
                ));
            }
        }
        Ok(())
    }
}

/// Whether the API accepts this name.
fn is_name(name: &str, max: usize, also: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= max
        && name.starts_with(is_plain)
        && name.ends_with(is_plain)
        && name.chars().all(|c| is_plain(c) || also.contains(c))
}
