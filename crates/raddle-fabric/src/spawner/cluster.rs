//! What a Kubernetes cluster is asked for: the table `[spawner.kubernetes]`. Values only.

use std::{path::PathBuf, time::Duration};

use raddle_core::Span;
use serde::Deserialize;

/// What one source says of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterLayer {
    /// The namespace of the pods; else that of the spawner's own pod.
    pub namespace: Option<String>,
    /// The API server, where the spawner is no pod of the cluster.
    pub server: Option<String>,
    /// The certificate of who vouches for that server.
    pub ca_file: Option<PathBuf>,
    /// A file with the token that it knows us by. It is read anew for every call.
    pub token_file: Option<PathBuf>,
    /// The Secret in which workers find the queue URL.
    pub queue_secret: Option<String>,
    /// The key in that Secret.
    pub queue_secret_key: Option<String>,
    /// A file that is laid over the pods that we make.
    pub template: Option<PathBuf>,
    /// How long a pod may take to run.
    pub start_within: Option<Span>,
    /// How long a worker that is told to stop may take to finish its task.
    pub grace: Option<Span>,
}

/// What a cluster is asked for.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Cluster {
    /// The namespace of the pods, if it is not that of the spawner's own.
    pub namespace: Option<String>,
    /// The API server, if the spawner is no pod of the cluster.
    pub server: Option<String>,
    /// The certificate of who vouches for that server.
    pub ca_file: Option<PathBuf>,
    /// A file with the token that it knows us by.
    pub token_file: Option<PathBuf>,
    /// The Secret in which workers find the queue URL, and the key in it.
    pub queue_secret: Option<(String, String)>,
    /// A file that is laid over the pods that we make.
    pub template: Option<PathBuf>,
    /// How long a pod may take to run.
    pub start_within: Duration,
    /// How long a worker that is told to stop may take to finish its task.
    pub grace: Duration,
}

const QUEUE_KEY: &str = "QUEUE_URL";
/// A cluster that grows by a machine takes some minutes to do so.
const START_WITHIN: Span = Span::secs(300);
/// What takes longer is run again when a node is emptied.
const GRACE: Span = Span::secs(3600);
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// As the API has it for what becomes part of host names, and for what need not.
const LONGEST_LABEL: usize = 63;
const LONGEST_NAME: usize = 253;

impl ClusterLayer {
    /// All of it, checked. The error is the key and what is wrong with it.
    pub(super) fn settle(self) -> Result<Cluster, (&'static str, String)> {
        if let Some(wrong) = self.namespace.as_deref().filter(|name| !is_name(name, LONGEST_LABEL, "-")) {
            return Err(("namespace", format!("'{}' is not the name of a namespace", wrong.escape_debug())));
        }
        let key = self.queue_secret_key.unwrap_or_else(|| QUEUE_KEY.into());
        if !key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) || key.is_empty() {
            return Err(("queue_secret_key", "it is not the key of a Secret".into()));
        }
        if self.queue_secret.as_deref().is_some_and(|name| !is_name(name, LONGEST_NAME, "-.")) {
            // It is not repeated: somebody may have put the URL itself here.
            return Err(("queue_secret", "it is not the name of a Secret: give its name, not what is in it".into()));
        }
        Ok(Cluster {
            namespace: self.namespace,
            server: self.server,
            ca_file: self.ca_file,
            token_file: self.token_file,
            queue_secret: self.queue_secret.map(|name| (name, key)),
            template: self.template,
            start_within: within("start_within", self.start_within.unwrap_or(START_WITHIN))?,
            grace: within("grace", self.grace.unwrap_or(GRACE))?,
        })
    }
}

impl Default for Cluster {
    fn default() -> Self {
        ClusterLayer::default().settle().expect("what holds without a file is right")
    }
}

fn within(key: &'static str, Span(time): Span) -> Result<Duration, (&'static str, String)> {
    if time < Duration::from_secs(1) || time > LONGEST {
        return Err((key, "it is not between a second and a week".into()));
    }
    Ok(time)
}

/// What the API takes for a name.
fn is_name(name: &str, longest: usize, also: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= longest
        && name.starts_with(is_plain)
        && name.ends_with(is_plain)
        && name.chars().all(|c| is_plain(c) || also.contains(c))
}
