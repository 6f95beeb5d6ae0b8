//! Removing containers whose leash is gone.
//!
//! One that runs ends by itself when its leash is killed, and the engine removes it. This is for those that were made and not started yet, and for
//! what an engine has lost sight of that was killed itself.

use std::{collections::HashMap, io, time::Duration};

use bollard::{models::ContainerSummary, query_parameters::ListContainersOptionsBuilder};

use raddle_broker::AttemptId;
use tokio::time::{sleep, timeout};

use super::{
    config::{self, LEASHED},
    process_identity::ProcessIdentity,
    program,
};
use crate::{DockerEngine, LaunchError};

/// An engine may have been asked for a container by a leash that is dead, and make it now.
const STILL_BEING_MADE: Duration = Duration::from_secs(2);

/// How long the end of an attempt waits for that of its container.
const ENDED_WITHIN: Duration = Duration::from_secs(5);

/// Removes what was left when a leash was killed.
pub async fn sweep() {
    sleep(STILL_BEING_MADE).await;
    report(now().await);
}

/// Ends the container of an attempt whose leash was killed. It ends by itself; but the attempt is not over before it has.
pub async fn end(attempt_id: AttemptId) {
    let ended = async {
        if let Ok(engine) = DockerEngine::of_environment() {
            let name = config::name(attempt_id.tid, attempt_id.attempt);
            if engine.remove(&name).await.is_ok() {
                engine.until_removed(&name).await;
            }
        }
    };
    // An engine that does not answer cannot be waited for: its container misses its leash all the same.
    let _ = timeout(ENDED_WITHIN, ended).await;
}

/// What a worker does first: looks whether tasks can be run in containers of this image, says so if not, and removes what others have left.
/// An engine that is not there yet may come.
pub async fn look_around(image: &str) {
    let looked = async {
        let engine = DockerEngine::of_environment()?;
        engine.image(image).await?;
        now().await
    };
    report(looked.await);
}

/// Removes what is there without a leash.
pub(super) async fn now() -> Result<(), LaunchError> {
    program::sweep_copies();
    let here = ProcessIdentity::of_this_process()
        .ok_or_else(|| LaunchError::from(io::Error::from(io::ErrorKind::NotFound)))?;
    let engine = DockerEngine::of_environment()?;
    let options = ListContainersOptionsBuilder::default().all(true);
    let options = options
        .filters(&HashMap::from([("label", vec![LEASHED])]))
        .build();
    let listed = async { engine.client()?.list_containers(Some(options)).await };
    let listed = listed.await.map_err(|error| engine.fault(&error, ""))?;
    for name in listed.iter().filter_map(|found| unleashed(found, &here)) {
        engine
            .remove(name)
            .await
            .map_err(|error| engine.fault(&error, ""))?;
        tracing::info!(
            container = name,
            "removed a container whose attempt is over"
        );
    }
    Ok(())
}

/// What a container is called whose leash is gone. Labels can be put on anything: what is not called as ours are is somebody else's.
fn unleashed<'a>(found: &'a ContainerSummary, here: &ProcessIdentity) -> Option<&'a str> {
    let leash: ProcessIdentity = found.labels.as_ref()?.get(LEASHED)?.parse().ok()?;
    let name = found
        .names
        .as_ref()?
        .iter()
        .find_map(|name| name.strip_prefix('/'))?;
    (name.starts_with("raddle-") && leash.is_over(here)).then_some(name)
}

fn report(done: Result<(), LaunchError>) {
    if let Err(error) = done {
        tracing::warn!(%error, "tasks with the isolation 'docker' cannot be run yet");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_and_over_is_removed() {
        let here = ProcessIdentity::of_this_process().unwrap();
        let found = |name: &str, leash: &str| ContainerSummary {
            names: Some(vec![format!("/{name}")]),
            labels: Some(HashMap::from([(LEASHED.into(), leash.into())])),
            ..ContainerSummary::default()
        };
        let over = "another-boot/x 1 1";
        assert_eq!(
            unleashed(&found("raddle-1-1", over), &here),
            Some("raddle-1-1")
        );
        assert_eq!(unleashed(&found("postgres", over), &here), None);
        assert_eq!(
            unleashed(&found("raddle-1-1", &here.to_string()), &here),
            None
        );
        assert_eq!(unleashed(&found("raddle-1-1", "nonsense"), &here), None);
        assert_eq!(unleashed(&ContainerSummary::default(), &here), None);
    }
}
