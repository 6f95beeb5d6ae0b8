//! The calls that are needed: create, list, watch and delete pods.

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

/// The API server, as far as pods of one class are concerned.
#[derive(Clone)]
pub(super) struct Api {
    access: ClusterAccess,
    /// The label that they have, as a query has it.
    selector: String,
}

/// All pods there are, and the moment that this is true of.
#[derive(Debug)]
pub(super) struct PodListing {
    pub(super) pods: Vec<Pod>,
    pub(super) version: String,
}

/// What happens to pods, as it happens.
pub(super) struct PodWatch {
    answer: HttpResponse,
    access: ClusterAccess,
    rest: Vec<u8>,
}

/// One thing that happens: a line of a watch.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
pub(super) enum WatchEvent {
    Added(Pod),
    Modified(Pod),
    /// With the last that was known of it.
    Deleted(Pod),
    /// Nothing happened up to the version of this.
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

/// After how long the server ends what is followed, for us to ask anew: a connection that has died unseen is missed then.
const FOLLOW_SECS: u64 = 60;
const BEYOND: Duration = Duration::from_secs(15);
/// No pod is nearly as long.
const LONGEST_LINE: usize = 8 << 20;

impl Api {
    /// For pods with this label.
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
        http::ask(&self.access, Method::POST, &self.pods(), Some(pod))
            .await
            .map(drop)
    }

    pub(super) async fn list(&self) -> Result<PodListing, ApiError> {
        let path = format!("{}?{}", self.pods(), self.selector);
        let body = http::ask(&self.access, Method::GET, &path, None).await?;
        let PodList { metadata, items } = read(&self.access, &body)?;
        Ok(PodListing {
            pods: items,
            version: metadata.resource_version,
        })
    }

    /// Follows what happens after the moment `version`.
    pub(super) async fn follow(&self, version: &str) -> Result<PodWatch, ApiError> {
        let path = format!(
            "{}?{}&watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={FOLLOW_SECS}",
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

    /// Removes a pod; what runs in it may take so long, or as long as its spec says. One that is not there is no error.
    pub(super) async fn delete(&self, name: &str, grace: Option<u32>) -> Result<(), ApiError> {
        let mut options = json!({ "apiVersion": "v1", "kind": "DeleteOptions" });
        if let Some(secs) = grace {
            options["gracePeriodSeconds"] = secs.into();
        }
        let path = format!("{}/{name}", self.pods());
        match http::ask(&self.access, Method::DELETE, &path, Some(&options)).await {
            Err(fault) if fault.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }
}

impl PodWatch {
    /// The next that happens. `None` when the server has had enough.
    pub(super) async fn next(&mut self) -> Result<Option<WatchEvent>, ApiError> {
        loop {
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                if !line.trim_ascii().is_empty() {
                    return read(&self.access, &line).map(Some);
                }
            }
            if self.rest.len() > LONGEST_LINE {
                return Err(http::unreachable(&self.access, &"what it says has no end"));
            }
            let patience = Duration::from_secs(FOLLOW_SECS) + BEYOND;
            let frame = timeout(patience, self.answer.body.frame()).await;
            let frame =
                frame.map_err(|_| http::unreachable(&self.access, &"it has fallen silent"))?;
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
    // What is not understood is as good as no answer.
    let garbled = |error| {
        http::unreachable(
            access,
            &format_args!("its answer is not understood ({error})"),
        )
    };
    serde_json::from_slice(body).map_err(garbled)
}

/// A moment is whatever the server says it is.
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
