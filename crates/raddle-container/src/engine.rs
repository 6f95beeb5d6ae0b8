//! `DockerEngine`: calls to a Docker engine, and what their failures mean.

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

/// A Docker engine of this machine. Each call makes a connection, so a restart of the engine does
/// not matter.
#[derive(Clone, Debug)]
pub struct DockerEngine {
    socket: PathBuf,
}

/// Properties of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineInfo {
    /// Its version.
    pub version: String,
    /// Whether containers have a seccomp filter by default.
    pub has_seccomp: bool,
}

/// Properties of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageInfo {
    /// Directories that are volumes on the engine's disk by default.
    pub volumes: Vec<String>,
}

/// The state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// It runs.
    Running,
    /// It has ended, and is removed.
    Exited(ExitKind),
}

const SOCKET: &str = "/var/run/docker.sock";
const HOST: &str = "DOCKER_HOST";
/// Timeout of a call in seconds: a busy engine on a slow disk takes long to create a container.
const CALL_TIMEOUT_SECS: u64 = 30;
/// How long to wait for the `die` event of a container whose output has ended.
const EVENT_TIMEOUT: Duration = Duration::from_secs(2);
const SIGKILL: i32 = 9;

impl DockerEngine {
    /// The engine that `DOCKER_HOST` names, or the default one.
    pub fn from_env() -> Result<Self, LaunchError> {
        match env::var(HOST).ok().filter(|host| !host.is_empty()) {
            None => Ok(Self::at_socket(SOCKET)),
            Some(host) => match host.strip_prefix("unix://") {
                Some(path) => Ok(Self::at_socket(path)),
                // Containers mount directories of this machine, so the engine must be local.
                None => Err(LaunchError::new(
                    LaunchFailure::Unreachable,
                    format!(
                        "{HOST} does not name an engine of this machine: use unix://PATH, or unset it"
                    ),
                )),
            },
        }
    }

    /// The engine at this socket.
    pub fn at_socket(socket: impl Into<PathBuf>) -> Self {
        Self {
            socket: socket.into(),
        }
    }

    /// Queries the properties of the engine.
    pub async fn info(&self) -> Result<EngineInfo, LaunchError> {
        let ask = async {
            let info = self.client()?.info().await?;
            let options = info.security_options.unwrap_or_default();
            let has_seccomp = options
                .iter()
                .any(|option| option.starts_with("name=seccomp") && !option.contains("unconfined"));
            Ok(EngineInfo {
                version: info.server_version.unwrap_or_default(),
                has_seccomp,
            })
        };
        ask.await.map_err(|error| self.launch_error(&error, ""))
    }

    /// A client of the engine.
    pub fn client(&self) -> Result<Docker, Error> {
        Docker::connect_with_unix(
            &self.socket.to_string_lossy(),
            CALL_TIMEOUT_SECS,
            API_DEFAULT_VERSION,
        )
    }

    /// Removes a container in any state. A missing one is no error.
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
            Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(()),
            other => other,
        }
    }

    /// Queries the image that tasks run in.
    pub async fn inspect_image(&self, name: &str) -> Result<ImageInfo, LaunchError> {
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
            Err(error) if is_not_found(&error) => {
                let reason = format!(
                    "the image '{name}' for tasks is not on this machine: 'docker pull {name}' gets it, if a registry has it"
                );
                Err(LaunchError::new(LaunchFailure::Image, reason))
            }
            Err(error) => Err(self.launch_error(&error, name)),
        }
    }

    /// Finds the state of a container whose output has ended. It was created after `since`.
    pub async fn container_state(
        &self,
        container: &str,
        since: &str,
    ) -> Result<ContainerState, Error> {
        let filters = HashMap::from([
            ("container", vec![container]),
            ("event", vec!["die", "oom"]),
        ]);
        let options = EventsOptionsBuilder::default()
            .since(since)
            .filters(&filters)
            .build();
        let mut events = std::pin::pin!(self.client()?.events(Some(options)));
        let mut out_of_memory = false;
        // The engine sends past events first, then new ones.
        let exit_code = timeout(EVENT_TIMEOUT, async {
            while let Some(event) = events.next().await.transpose()? {
                match event.action.as_deref() {
                    Some("oom") => out_of_memory = true,
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
        match exit_code.await {
            Ok(Ok(Some(code))) => Ok(ContainerState::Exited(exit_kind(
                code.parse().ok(),
                out_of_memory,
            ))),
            Ok(Err(error)) => Err(error),
            // It still runs, or the engine was restarted since.
            Ok(Ok(None)) | Err(_) => self.inspect_container(container).await,
        }
    }

    async fn inspect_container(&self, container: &str) -> Result<ContainerState, Error> {
        let found = self
            .client()?
            .inspect_container(container, None::<InspectContainerOptions>)
            .await;
        let state = match found {
            Err(error) if is_not_found(&error) => {
                return Ok(ContainerState::Exited(ExitKind::Unknown));
            }
            Err(error) => return Err(error),
            Ok(ContainerInspectResponse { state, .. }) => state.unwrap_or_default(),
        };
        if state.running.unwrap_or(false) {
            return Ok(ContainerState::Running);
        }
        self.remove(container).await?;
        Ok(ContainerState::Exited(exit_kind(
            state.exit_code,
            state.oom_killed.unwrap_or(false),
        )))
    }

    /// Classifies an error of a launch from this image.
    pub fn launch_error(&self, error: &Error, image: &str) -> LaunchError {
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
                format!("the Docker engine at {socket} has not answered for {CALL_TIMEOUT_SECS} s"),
            ),
            Error::DockerResponseServerError {
                status_code,
                message,
            } => classify_refusal(*status_code, message, image),
            other => match io_kind(other) {
                Some(io::ErrorKind::PermissionDenied) => LaunchError::new(
                    LaunchFailure::Denied,
                    format!(
                        "this user may not use the Docker engine at {socket}: add it to the group 'docker'"
                    ),
                ),
                Some(_) => LaunchError::new(
                    LaunchFailure::Unreachable,
                    format!(
                        "the Docker engine at {socket} cannot be reached ({}): start it",
                        root_cause(other)
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

/// Classifies a refusal of the engine. Only the message distinguishes them.
fn classify_refusal(status: u16, message: &str, image: &str) -> LaunchError {
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
            "the image '{image}' is not on this machine: 'docker pull {image}' gets it, if a registry has it; 'cargo xtask image' builds one of this program"
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
            format!("the image '{image}' does not have this program as its entrypoint ({message})");
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

fn exit_kind(code: Option<i64>, out_of_memory: bool) -> ExitKind {
    match code {
        None => ExitKind::Unknown,
        Some(code) => match ExitKind::from_exit_code(code as i32) {
            ExitKind::Signal(SIGKILL) if out_of_memory => ExitKind::OutOfMemory,
            gone => gone,
        },
    }
}

/// Whether the engine has no such container or image.
pub fn is_not_found(error: &Error) -> bool {
    matches!(
        error,
        Error::DockerResponseServerError {
            status_code: 404,
            ..
        }
    )
}

/// Whether the state of the container conflicts with the call, or it is being removed.
pub fn is_conflict(error: &Error) -> bool {
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
    // A connection that ends within a response has no I/O error as source.
    matches!(
        error,
        Error::HyperResponseError { .. } | Error::HyperLegacyError { .. }
    )
    .then_some(io::ErrorKind::ConnectionReset)
}

/// The innermost source, which the user can fix.
fn root_cause(error: &Error) -> String {
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
    fn classifies_refusals() {
        let seen = |status, message: &str| classify_refusal(status, message, "some/image:1").kind;
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
        let network = classify_refusal(404, "network inner not found", "x");
        assert!(
            network.to_string().contains("docker network create"),
            "{network}"
        );
        let image =
            classify_refusal(404, "No such image: some/image:1", "some/image:1").to_string();
        assert!(
            image.contains("'some/image:1'") && image.contains("cargo xtask image"),
            "{image}"
        );
        let hostile =
            classify_refusal(500, &format!("a\nb\x1b[2J{}", "x".repeat(9999)), "x").to_string();
        assert!(
            hostile.len() < 500 && !hostile.contains(['\n', '\x1b']),
            "{hostile}"
        );
    }

    #[test]
    fn classifies_exit_codes() {
        assert_eq!(exit_kind(Some(0), false), ExitKind::Code(0));
        assert_eq!(exit_kind(Some(125), true), ExitKind::Code(125));
        assert_eq!(exit_kind(Some(137), false), ExitKind::Signal(9));
        assert_eq!(exit_kind(Some(137), true), ExitKind::OutOfMemory);
        assert_eq!(exit_kind(Some(255), false), ExitKind::Code(255));
        assert_eq!(exit_kind(None, false), ExitKind::Unknown);
    }
}
