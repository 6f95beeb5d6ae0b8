//! Checks of the Docker engine and of the image for tasks.

use raddle_spawner::{LaunchFailure, docker::DockerEngine};

use super::Finding;

/// Checks the Docker engine. A machine without one is not a fault.
pub(super) async fn check_engine() -> Finding {
    let is_named = std::env::var_os("DOCKER_HOST").is_some_and(|host| !host.is_empty());
    let (area, name) = ("containers", "docker engine");
    match async { DockerEngine::of_environment()?.standing().await }.await {
        Ok(engine) if engine.filters => Finding::fine(
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
        Err(error) if error.obstacle == LaunchFailure::Unreachable && !is_named => Finding::fine(
            area,
            name,
            "none here, and none needed unless workers are to be containers".into(),
        ),
        Err(error) => Finding::warning(area, name, error.to_string(), fix(error.obstacle, None)),
    }
}

/// Checks whether tasks can run in containers, as far as that is known without a worker's image.
pub(super) async fn check_task_image() -> Finding {
    let (area, name) = ("isolation", "docker");
    let image = std::env::var("WORKER_TASK_IMAGE")
        .ok()
        .filter(|image| !image.is_empty());
    let Some(image) = image else {
        let detail = "for workers with --task-image, or WORKER_TASK_IMAGE, which is not set here";
        return Finding::fine(area, name, detail.into());
    };
    match async { DockerEngine::of_environment()?.image(&image).await }.await {
        Ok(_) => Finding::fine(
            area,
            name,
            format!("tasks run in containers of '{image}', as WORKER_TASK_IMAGE says"),
        ),
        Err(error) => Finding::warning(
            area,
            name,
            error.to_string(),
            fix(error.obstacle, Some(&image)),
        ),
    }
}

/// The fix for an engine or image that does not work.
fn fix(failure: LaunchFailure, image: Option<&str>) -> String {
    match (failure, image) {
        (LaunchFailure::Image, Some(image)) => {
            format!(
                "'docker pull {image}', if a registry has it, or name another in WORKER_TASK_IMAGE"
            )
        }
        (LaunchFailure::Unreachable, _) => {
            "start the engine, or name another with DOCKER_HOST=unix://PATH".into()
        }
        (LaunchFailure::Denied, _) => {
            "put this user into the group 'docker', and log in anew".into()
        }
        (LaunchFailure::DiskFull, _) => {
            "make room on the engine's disk: 'docker system df' shows what takes it".into()
        }
        (LaunchFailure::Starved, _) => {
            "raise what this user may have, with 'ulimit -n' and 'ulimit -u'".into()
        }
        _ => "look at the engine's log, for example with 'journalctl -u docker'".into(),
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
