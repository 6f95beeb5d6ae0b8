//! Checks of the Docker engine and of the image for tasks.

use raddle_spawner::{LaunchFailure, docker::DockerEngine};

use super::Finding;

/// Checks the Docker engine. A machine without one is not a fault.
pub(super) async fn check_engine() -> Finding {
    let is_named = std::env::var_os("DOCKER_HOST").is_some_and(|host| !host.is_empty());
    let (area, name) = ("containers", "docker engine");
    match async { DockerEngine::from_env()?.info().await }.await {
        Ok(engine) if engine.has_seccomp => Finding::fine(
            area,
            name,
            format!("version {}, with a seccomp filter", engine.version),
        ),
        Ok(engine) => Finding::warning(
            area,
            name,
            format!(
                "version {}, without a seccomp filter: the launcher 'docker' refuses it",
                engine.version
            ),
            "start the engine with its filter, or name a profile in spawner.container.seccomp",
        ),
        Err(error) if error.kind == LaunchFailure::Unreachable && !is_named => Finding::fine(
            area,
            name,
            "not found; needed only for workers in containers".into(),
        ),
        Err(error) => Finding::warning(area, name, error.to_string(), fix(error.kind, None)),
    }
}

/// Checks whether tasks can run in containers, as far as that is known without a worker's image.
pub(super) async fn check_task_image() -> Finding {
    let (area, name) = ("isolation", "docker");
    let image = std::env::var("WORKER_TASK_IMAGE")
        .ok()
        .filter(|image| !image.is_empty());
    let Some(image) = image else {
        let detail = "not checked: WORKER_TASK_IMAGE is not set";
        return Finding::fine(area, name, detail.into());
    };
    match async { DockerEngine::from_env()?.inspect_image(&image).await }.await {
        Ok(_) => Finding::fine(
            area,
            name,
            format!("tasks run in containers of the image '{image}' (WORKER_TASK_IMAGE)"),
        ),
        Err(error) => {
            Finding::warning(area, name, error.to_string(), fix(error.kind, Some(&image)))
        }
    }
}

/// The fix for an engine or image that does not work.
fn fix(failure: LaunchFailure, image: Option<&str>) -> String {
    match (failure, image) {
        (LaunchFailure::Image, Some(image)) => {
            format!("run 'docker pull {image}', or name another image in WORKER_TASK_IMAGE")
        }
        (LaunchFailure::Unreachable, _) => {
            "start the engine, or name another with DOCKER_HOST=unix://PATH".into()
        }
        (LaunchFailure::Denied, _) => {
            "add this user to the group 'docker', and log in again".into()
        }
        (LaunchFailure::DiskFull, _) => {
            "free space on the disk of the engine: see 'docker system df'".into()
        }
        (LaunchFailure::ResourcesExhausted, _) => {
            "raise the limits of this user with 'ulimit -n' and 'ulimit -u'".into()
        }
        _ => "see the log of the engine, for example with 'journalctl -u docker'".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_image_is_named_only_if_the_engine_answers() {
        let image = Some("some/image:1");
        assert!(fix(LaunchFailure::Unreachable, image).starts_with("start the engine"));
        assert!(fix(LaunchFailure::Image, image).contains("docker pull some/image:1"));
    }
}
