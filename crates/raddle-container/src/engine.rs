//! The engine: calls, and what their failures mean.

use std::{collections::HashMap, env, error::Error as _, io, path::PathBuf, time::Duration};

use bollard::{
    API_DEFAULT_VERSION, Docker,
    errors::Error,
    models::ContainerInspectResponse,
    query_parameters::{
        EventsOptionsBuilder, InspectContainerOptions, RemoveContainerOptionsBuilder,
    },
};
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::{ExitKind, LaunchError, LaunchFailure, one_line};

/// An engine of this machine. Each call has a connection of its own, so one that is restarted need not be found anew.
#[derive(Clone, Debug)]
pub struct DockerEngine {
    socket: PathBuf,
}

/// What an engine says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineInfo {
    /// Its version.
    pub version: String,
    /// Whether containers are under a seccomp filter unless told otherwise.
    pub filters: bool,
}

/// What is known of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageInfo {
    /// The directories that containers of it have on the engine's disk, unless they are given others.
    pub volumes: Vec<String>,
}

/// What has become of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerExit {
    /// It runs.
    Runs,
    /// It has ended, and is removed.
    Gone(ExitKind),
}

const SOCKET: &str = "/var/run/docker.sock";
const HOST: &str = "DOCKER_HOST";
/// How long an answer may take, in seconds: a busy engine on a slow disk takes some to make a container.
const PATIENCE: u64 = 30;
/// How long after its last word the end of a container may be told.
const TOLD_WITHIN: Duration = Duration::from_secs(2);
const SIGKILL: i32 = 9;

impl DockerEngine {
    /// The engine that `DOCKER_HOST` names, or the usual one.
    pub fn of_environment() -> Result<Self, LaunchError> {
        match env::var(HOST).ok().filter(|host| !host.is_empty()) {
            None => Ok(Self::at(SOCKET)),
            Some(host) => match host.strip_prefix("unix://") {
                Some(path) => Ok(Self::at(path)),
                // Directories of this machine are shared with its containers.
                None => Err(LaunchError::new(
                    LaunchFailure::Unreachable,
                    format!(
                        "{HOST} does not name an engine of this machine: give unix://PATH, or unset it"
                    ),
                )),
            },
        }
    }

    /// The engine that listens there.
    pub fn at(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
        }
    }

    /// Asks it how it is.
    pub async fn standing(&self) -> Result<EngineInfo, LaunchError> {
        let ask = async {
            let info = self.client()?.info().await?;
            let filters = info.security_options.unwrap_or_default();
            let filters = filters
                .iter()
                .any(|option| option.starts_with("name=seccomp") && !option.contains("unconfined"));
            Ok(EngineInfo {
                version: info.server_version.unwrap_or_default(),
                filters,
            })
        };
        ask.await.map_err(|error| self.fault(&error, ""))
    }

    /// A client of the engine.
    pub fn client(&self) -> Result<Docker, Error> {
        Docker::connect_with_unix(
            &self.socket.to_string_lossy(),
            PATIENCE,
            API_DEFAULT_VERSION,
        )
    }

    /// Removes a container, whatever it does. One that is not there is no error.
    pub async fn remove(&self, container: &str) -> Result<(), Error> {
        let options = RemoveContainerOptionsBuilder::default()
            .force(true)
            .v(true)
            .build();
        match self
            .client()?
            .remove_container(container, Some(options))
            .await
        {
            Err(error) if is_absent(&error) || is_in_the_way(&error) => Ok(()),
            other => other,
        }
    }

    /// What is known of an image that tasks are to be run in.
    pub async fn image(&self, name: &str) -> Result<ImageInfo, LaunchError> {
        match async { self.client()?.inspect_image(name).await }.await {
            Ok(found) => {
                let volumes = found
                    .config
                    .and_then(|config| config.volumes)
                    .unwrap_or_default();
                Ok(ImageInfo {
                    volumes: volumes.into_iter().collect(),
                })
            }
            Err(error) if is_absent(&error) => {
                let reason = format!(
                    "there is no image '{name}' here, which this worker runs tasks in: 'docker pull {name}' gets it, if a registry has it"
                );
                Err(LaunchError::new(LaunchFailure::Image, reason))
            }
            Err(error) => Err(self.fault(&error, name)),
        }
    }

    /// What has become of a container that says nothing any more, and was not there before `since`.
    pub async fn fate(&self, container: &str, since: &str) -> Result<ContainerExit, Error> {
        let filters = HashMap::from([
            ("container", vec![container]),
            ("event", vec!["die", "oom"]),
        ]);
        let options = EventsOptionsBuilder::default()
            .since(since)
            .filters(&filters)
            .build();
        let mut events = std::pin::pin!(self.client()?.events(Some(options)));
        let mut starved = false;
        // It is told what it has missed, and then what happens.
        let told = timeout(TOLD_WITHIN, async {
            while let Some(event) = events.next().await.transpose()? {
                match event.action.as_deref() {
                    Some("oom") => starved = true,
                    Some("die") => {
                        return Ok(event
                            .actor
                            .and_then(|actor| actor.attributes?.remove("exitCode")));
                    }
                    _ => {}
                }
            }
            Ok::<_, Error>(None)
        });
        match told.await {
            Ok(Ok(Some(code))) => Ok(ContainerExit::Gone(ended(code.parse().ok(), starved))),
            Ok(Err(error)) => Err(error),
            // It goes on, or the engine was restarted since.
            Ok(Ok(None)) | Err(_) => self.found(container).await,
        }
    }

    async fn found(&self, container: &str) -> Result<ContainerExit, Error> {
        let found = self
            .client()?
            .inspect_container(container, None::<InspectContainerOptions>)
            .await;
        let state = match found {
            Err(error) if is_absent(&error) => return Ok(ContainerExit::Gone(ExitKind::Untold)),
            Err(error) => return Err(error),
            Ok(ContainerInspectResponse { state, .. }) => state.unwrap_or_default(),
        };
        if state.running.unwrap_or(false) {
            return Ok(ContainerExit::Runs);
        }
        self.remove(container).await?;
        Ok(ContainerExit::Gone(ended(
            state.exit_code,
            state.oom_killed.unwrap_or(false),
        )))
    }

    /// What a failure means for a launch from this image.
    pub fn fault(&self, error: &Error, image: &str) -> LaunchError {
        let socket = self.socket.display();
        match error {
            Error::SocketNotFoundError(_) => LaunchError::new(
                LaunchFailure::Unreachable,
                format!(
                    "there is no Docker engine at {socket}: start it, or name another with {HOST}=unix://PATH"
                ),
            ),
            Error::RequestTimeoutError => LaunchError::new(
                LaunchFailure::Unreachable,
                format!("the Docker engine at {socket} has not answered for {PATIENCE} s"),
            ),
            Error::DockerResponseServerError {
                status_code,
                message,
            } => refusal(*status_code, message, image),
            other => match io_kind(other) {
                Some(io::ErrorKind::PermissionDenied) => LaunchError::new(
                    LaunchFailure::Denied,
                    format!(
                        "this user may not use the Docker engine at {socket}: put it into the group 'docker'"
                    ),
                ),
                Some(_) => LaunchError::new(
                    LaunchFailure::Unreachable,
                    format!(
                        "the Docker engine at {socket} cannot be reached ({}): start it",
                        root_of(other)
                    ),
                ),
                None => LaunchError::new(
                    LaunchFailure::Refused,
                    format!("the Docker engine at {socket}: {other}"),
                ),
            },
        }
    }
}

/// What an engine that refuses means. Its words are all there is to tell one from another by.
fn refusal(status: u16, message: &str, image: &str) -> LaunchError {
    let said = message.trim().to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    let message = one_line(message);
    let message = message.trim_end_matches(": unknown");
    if has(&["no space left on device", "disk quota exceeded"]) {
        let reason = format!(
            "the Docker engine has no room on its disk ({message}): 'docker system df' shows what takes it"
        );
        return LaunchError::new(LaunchFailure::DiskFull, reason);
    }
    if has(&["no such image"]) {
        let reason = format!(
            "there is no image '{image}' here: 'docker pull {image}' gets it, if a registry has it; 'cargo xtask image' builds one of this program"
        );
        return LaunchError::new(LaunchFailure::Image, reason);
    }
    if has(&[
        "executable file not found",
        "no such file or directory",
        "exec format error",
        "no command specified",
    ]) || (said.contains("exec") && said.contains("permission denied"))
    {
        let reason =
            format!("the image '{image}' does not hold this program as its entrypoint ({message})");
        return LaunchError::new(LaunchFailure::Image, reason);
    }
    if status == 404 && said.contains("network") {
        let reason = format!(
            "{message}: 'docker network create' makes one, spawner.container.networks names it"
        );
        return LaunchError::new(LaunchFailure::Refused, reason);
    }
    LaunchError::new(
        LaunchFailure::Refused,
        format!("the Docker engine refuses: {message}"),
    )
}

fn ended(code: Option<i64>, starved: bool) -> ExitKind {
    match code {
        None => ExitKind::Untold,
        Some(code) => match ExitKind::of_exit_code(code as i32) {
            ExitKind::Signal(SIGKILL) if starved => ExitKind::OutOfMemory,
            gone => gone,
        },
    }
}

/// Whether the engine has no such container or image.
pub fn is_absent(error: &Error) -> bool {
    matches!(
        error,
        Error::DockerResponseServerError {
            status_code: 404,
            ..
        }
    )
}

/// Whether a container is in a state in which that cannot be done, or is being removed already.
pub fn is_in_the_way(error: &Error) -> bool {
    matches!(
        error,
        Error::DockerResponseServerError {
            status_code: 409,
            ..
        }
    )
}

fn io_kind(error: &Error) -> Option<io::ErrorKind> {
    let mut cause = error.source();
    if let Error::IOError { err } = error {
        return Some(err.kind());
    }
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    // A connection that ends in the middle of an answer has no cause that the system knows of.
    matches!(
        error,
        Error::HyperResponseError { .. } | Error::HyperLegacyError { .. }
    )
    .then_some(io::ErrorKind::ConnectionReset)
}

/// The innermost cause, which is what can be mended.
fn root_of(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    one_line(&cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_engine_refuses_is_told_apart() {
        let seen = |status, message: &str| refusal(status, message, "some/image:1").obstacle;
        assert_eq!(
            seen(404, "No such image: some/image:1"),
            LaunchFailure::Image
        );
        let runc = "OCI runtime create failed: container_linux.go:380: starting container process caused: exec: \"/raddle\": stat \
                    /raddle: no such file or directory: unknown";
        assert_eq!(seen(400, runc), LaunchFailure::Image);
        assert_eq!(seen(400, "No command specified"), LaunchFailure::Image);
        assert_eq!(
            seen(500, "mkdir /var/lib/docker/x: no space left on device"),
            LaunchFailure::DiskFull
        );
        assert_eq!(
            seen(409, "Conflict. The container name \"/x\" is already in use"),
            LaunchFailure::Refused
        );
        let network = refusal(404, "network inner not found", "x");
        assert!(
            network.to_string().contains("docker network create"),
            "{network}"
        );
        let image = refusal(404, "No such image: some/image:1", "some/image:1").to_string();
        assert!(
            image.contains("'some/image:1'") && image.contains("cargo xtask image"),
            "{image}"
        );
        let hostile = refusal(500, &format!("a\nb\x1b[2J{}", "x".repeat(9999)), "x").to_string();
        assert!(
            hostile.len() < 500 && !hostile.contains(['\n', '\x1b']),
            "{hostile}"
        );
    }

    #[test]
    fn exit_codes_are_told_apart() {
        assert_eq!(ended(Some(0), false), ExitKind::Code(0));
        assert_eq!(ended(Some(125), true), ExitKind::Code(125));
        assert_eq!(ended(Some(137), false), ExitKind::Signal(9));
        assert_eq!(ended(Some(137), true), ExitKind::OutOfMemory);
        assert_eq!(ended(Some(255), false), ExitKind::Code(255));
        assert_eq!(ended(None, false), ExitKind::Untold);
    }
}
