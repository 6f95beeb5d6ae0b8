//! The API calls: create, list, watch and delete pods.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Method;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    access::ClusterAccess,
    error::{ApiError, ApiStatus},
    http::{self, HttpResponse},
    pod::Pod,
};

/// The API server, limited to pods of one class.
#[derive(Clone)]
pub(super) struct Api {
    access: ClusterAccess,
    /// The label selector, as a query parameter.
    selector: String,
}

/// All pods, and the version of this state.
#[derive(Debug)]
pub(super) struct PodListing {
    pub(super) pods: Vec<Pod>,
    pub(super) version: String,
}

/// A watch on pods.
pub(super) struct PodWatch {
    answer: HttpResponse,
    access: ClusterAccess,
    rest: Vec<u8>,
}

/// An event of a watch: one line.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
pub(super) enum WatchEvent {
    Added(Pod),
    Modified(Pod),
    /// With the last known state.
    Deleted(Pod),
    /// There are no events up to the version of this pod.
    Bookmark(Pod),
    Error(ApiStatus),
}

#[derive(Deserialize)]
struct PodList {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Pod>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
}

/// The server ends a watch after this time, and we start another: that detects a dead connection.
const WATCH_SECS: u64 = 60;
const WATCH_MARGIN: Duration = Duration::from_secs(15);
/// No pod is nearly as long.
const MAX_LINE: usize = 8 << 20;

impl Api {
    /// The API for pods with this label.
    pub(super) fn new(access: ClusterAccess, label: (&str, &str)) -> Self {
        let (key, value) = label;
        Self {
            access,
            selector: format!("labelSelector={key}%3D{value}"),
        }
    }

    fn pods(&self) -> String {
        format!("/api/v1/namespaces/{}/pods", self.access.namespace)
    }

    pub(super) async fn create(&self, pod: &Value) -> Result<(), ApiError> {
        http::request(&self.access, Method::POST, &self.pods(), Some(pod))
            .await
            .map(drop)
    }

    pub(super) async fn list(&self) -> Result<PodListing, ApiError> {
        let path = format!("{}?{}", self.pods(), self.selector);
        let body = http::request(&self.access, Method::GET, &path, None).await?;
        let PodList { metadata, items } = read(&self.access, &body)?;
        Ok(PodListing {
            pods: items,
            version: metadata.resource_version,
        })
    }

    /// Watches changes after a version.
    pub(super) async fn watch(&self, version: &str) -> Result<PodWatch, ApiError> {
        let path = format!(
            "{}?{}&watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={WATCH_SECS}",
            self.pods(),
            self.selector,
            encode(version)
        );
        let answer = http::open(&self.access, Method::GET, &path, None).await?;
        Ok(PodWatch {
            answer,
            access: self.access.clone(),
            rest: Vec::new(),
        })
    }

    /// Deletes a pod with this grace period in seconds, or the one of its spec. A missing pod is no
    /// error.
    pub(super) async fn delete(&self, name: &str, grace: Option<u32>) -> Result<(), ApiError> {
        let mut options = json!({ "apiVersion": "v1", "kind": "DeleteOptions" });
        if let Some(secs) = grace {
            options["gracePeriodSeconds"] = secs.into();
        }
        let path = format!("{}/{name}", self.pods());
        match http::request(&self.access, Method::DELETE, &path, Some(&options)).await {
            Err(fault) if fault.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }
}

impl PodWatch {
    /// The next event. `None` when the server ends the watch.
    pub(super) async fn next(&mut self) -> Result<Option<WatchEvent>, ApiError> {
        loop {
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                if !line.trim_ascii().is_empty() {
                    return read(&self.access, &line).map(Some);
                }
            }
            if self.rest.len() > MAX_LINE {
                return Err(http::unreachable(
                    &self.access,
                    &"a line of its watch is too long",
                ));
            }
            let patience = Duration::from_secs(WATCH_SECS) + WATCH_MARGIN;
            let frame = timeout(patience, self.answer.body.frame()).await;
            let frame =
                frame.map_err(|_| http::unreachable(&self.access, &"its watch has timed out"))?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(http::unreachable(&self.access, &error)),
                Some(Ok(frame)) => {
                    if let Some(bytes) = frame.data_ref() {
                        self.rest.extend_from_slice(bytes);
                    }
                }
            }
        }
    }
}

fn read<T: DeserializeOwned>(access: &ClusterAccess, body: &[u8]) -> Result<T, ApiError> {
    // An unreadable answer counts as no answer.
    let garbled =
        |error| http::unreachable(access, &format_args!("its answer is malformed ({error})"));
    serde_json::from_slice(body).map_err(garbled)
}

/// Percent-encodes a version, which can be any text.
fn encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}
