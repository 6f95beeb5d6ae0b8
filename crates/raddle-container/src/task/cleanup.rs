//! Removing containers whose supervisor is gone.
//!
//! A running container ends by itself when its supervisor dies, and the engine removes it. This is
//! for containers that were created and not started, and for those that an engine lost in a crash.

use std::{collections::HashMap, io, time::Duration};

use bollard::{models::ContainerSummary, query_parameters::ListContainersOptionsBuilder};

use raddle_broker::AttemptId;
use tokio::time::{sleep, timeout};

use super::{
    config::{self, SUPERVISOR_LABEL},
    process_identity::ProcessIdentity,
    program,
};
use crate::{DockerEngine, LaunchError};

/// How long a killed supervisor's last request may still take in the engine.
const CREATE_DELAY: Duration = Duration::from_secs(2);

/// How long the end of an attempt waits for its container.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Removes orphaned containers after a supervisor was killed.
pub async fn remove_orphans_later() {
    sleep(CREATE_DELAY).await;
    log_failure(remove_orphans().await);
}

/// Ends the container of an attempt whose supervisor was killed. It would end by itself, but the
/// attempt must not end before it.
pub async fn end_container(attempt_id: AttemptId) {
    let ended = async {
        if let Ok(engine) = DockerEngine::from_env() {
            let name = config::container_name(attempt_id.tid, attempt_id.attempt);
            if engine.remove(&name).await.is_ok() {
                engine.wait_until_removed(&name).await;
            }
        }
    };
    // If the engine does not answer, process 1 still notices that its supervisor is gone.
    let _ = timeout(END_TIMEOUT, ended).await;
}

/// Checks at worker start whether tasks can run in containers of this image, logs a warning if not,
/// and removes orphaned containers. The engine may come up later.
pub async fn prepare_engine(image: &str) {
    let prepared = async {
        let engine = DockerEngine::from_env()?;
        engine.inspect_image(image).await?;
        remove_orphans().await
    };
    log_failure(prepared.await);
}

/// Removes containers whose supervisor is gone.
pub(super) async fn remove_orphans() -> Result<(), LaunchError> {
    program::remove_orphan_copies();
    let here = ProcessIdentity::current()
        .ok_or_else(|| LaunchError::from(io::Error::from(io::ErrorKind::NotFound)))?;
    let engine = DockerEngine::from_env()?;
    let options = ListContainersOptionsBuilder::default().all(true);
    let options = options
        .filters(&HashMap::from([("label", vec![SUPERVISOR_LABEL])]))
        .build();
    let listed = async { engine.client()?.list_containers(Some(options)).await };
    let listed = listed
        .await
        .map_err(|error| engine.launch_error(&error, ""))?;
    for name in listed.iter().filter_map(|found| orphan_name(found, &here)) {
        engine
            .remove(name)
            .await
            .map_err(|error| engine.launch_error(&error, ""))?;
        tracing::info!(
            container = name,
            "removed a container whose attempt is over"
        );
    }
    Ok(())
}

/// The name of an orphaned container. Anyone can set labels, so the name must be one of ours too.
fn orphan_name<'a>(found: &'a ContainerSummary, here: &ProcessIdentity) -> Option<&'a str> {
    let supervisor: ProcessIdentity = found.labels.as_ref()?.get(SUPERVISOR_LABEL)?.parse().ok()?;
    let name = found
        .names
        .as_ref()?
        .iter()
        .find_map(|name| name.strip_prefix('/'))?;
    (name.starts_with("raddle-") && supervisor.is_gone(here)).then_some(name)
}

fn log_failure(done: Result<(), LaunchError>) {
    if let Err(error) = done {
        tracing::warn!(%error, "tasks with the isolation 'docker' cannot be run yet");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_and_over_is_removed() {
        let here = ProcessIdentity::current().unwrap();
        let found = |name: &str, supervisor: &str| ContainerSummary {
            names: Some(vec![format!("/{name}")]),
            labels: Some(HashMap::from([(
                SUPERVISOR_LABEL.into(),
                supervisor.into(),
            )])),
            ..ContainerSummary::default()
        };
        let over = "another-boot/x 1 1";
        assert_eq!(
            orphan_name(&found("raddle-1-1", over), &here),
            Some("raddle-1-1")
        );
        assert_eq!(orphan_name(&found("postgres", over), &here), None);
        assert_eq!(
            orphan_name(&found("raddle-1-1", &here.to_string()), &here),
            None
        );
        assert_eq!(orphan_name(&found("raddle-1-1", "nonsense"), &here), None);
        assert_eq!(orphan_name(&ContainerSummary::default(), &here), None);
    }
}
