//! The container supervisor: creates a container for one attempt, and exits when it is gone.

use std::{
    fs::File,
    io::{self, Write},
    time::Duration,
};

use bollard::{
    errors::Error,
    query_parameters::{
        AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, InspectContainerOptions,
        StartContainerOptions,
    },
};
use raddle_model::{ExitStatus, frame, title};
use raddle_runner::{ExecResult, container::HEARTBEAT_TIMEOUT};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    ContainerParams, cleanup, config,
    process_identity::ProcessIdentity,
    program::{ProgramFile, loaded_libraries},
    protocol::{self, RunnerSignals},
};
use crate::{
    ContainerState, DockerEngine, ExitKind, LaunchError, LaunchFailure, is_conflict, is_not_found,
};

/// Descriptor for the answer.
const ANSWER: &str = "/proc/self/fd/3";
/// How long the engine may take to remove a container that has ended.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(10);
const EXIT_ERROR: u8 = 125;
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Runs the command that stdin describes, and writes its result. The exit code says only whether
/// that worked.
pub fn main() -> u8 {
    // Without descriptor 3 this process was not started by a runner.
    let mut answer = match File::options().write(true).open(ANSWER) {
        Ok(answer) => answer,
        Err(error) => return report_error(&error),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let exit = match runtime {
        Ok(runtime) => runtime.block_on(supervise()),
        Err(error) => Err(no_resources(&error)),
    };
    let done = exit.unwrap_or_else(ExecResult::not_started);
    answer
        .write_all(&frame::encode(&done))
        .map_or_else(|error| report_error(&error), |()| 0)
}

fn report_error(error: &io::Error) -> u8 {
    let _ = writeln!(
        io::stderr(),
        "raddle: cannot run as a container supervisor, which only a worker can start: {error}"
    );
    EXIT_ERROR
}

async fn supervise() -> Result<ExecResult, ExitStatus> {
    let mut signals = RunnerSignals::install().map_err(|error| no_resources(&error))?;
    let params = protocol::read_params().map_err(|error| no_resources(&error))?;
    let request = &params.request;
    raddle_runner::title::set(&title::format(request.tid, &request.name, "contained"));
    let engine = DockerEngine::from_env().map_err(exit_status)?;
    let name = config::container_name(request.tid, request.attempt);
    let since = since();
    let result = run(&engine, &name, &params, &mut signals);
    let result = if request.attempt > 1 {
        // The supervisor of an earlier attempt may have been killed.
        let (result, removed) = tokio::join!(result, cleanup::remove_orphans());
        drop(removed);
        result
    } else {
        result.await
    };
    match result? {
        Some(ended) => {
            engine.wait_until_removed(&name).await;
            Ok(ended)
        }
        None => Err(missing_result(&engine, &name, &since).await),
    }
}

/// Creates a container and runs the command in it. A container that cannot start is removed.
async fn run(
    engine: &DockerEngine,
    name: &str,
    params: &ContainerParams,
    signals: &mut RunnerSignals,
) -> Result<Option<ExecResult>, ExitStatus> {
    let fault = |error: Error| exit_status(engine.launch_error(&error, &params.image));
    let image = engine
        .inspect_image(&params.image)
        .await
        .map_err(exit_status)?;
    let program = ProgramFile::locate().map_err(|error| no_resources(&error))?;
    let libraries = loaded_libraries().map_err(|error| no_resources(&error))?;
    let identity =
        ProcessIdentity::current().ok_or_else(|| no_resources(&io::ErrorKind::NotFound.into()))?;
    let docker = engine.client().map_err(fault)?;
    let options = CreateContainerOptionsBuilder::default().name(name).build();
    let body = config::create_body(
        params,
        program.path(),
        &libraries,
        &identity,
        &image.volumes,
    );
    match docker.create_container(Some(options), body).await {
        Ok(_) => {}
        // The next attempt has another container name.
        Err(error) if is_conflict(&error) => {
            return Err(ExitStatus::NoHandler {
                message: engine.launch_error(&error, &params.image).to_string(),
            });
        }
        Err(error) => return Err(fault(error)),
    }
    let result = async {
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .build();
        let attached = docker.attach_container(name, Some(options)).await?;
        let start = async {
            docker
                .start_container(name, None::<StartContainerOptions>)
                .await?;
            // Process 1 has opened the file.
            drop(program);
            Ok(())
        };
        protocol::run_in_container(attached, &params.request, signals, start).await
    };
    match result.await {
        Ok(ended) => Ok(ended),
        Err(error) => {
            let _ = engine.remove(name).await;
            Err(start_failed(
                engine.launch_error(&error, &params.image),
                &params.image,
            ))
        }
    }
}

/// The exit status of an attempt whose container sent no result: it was killed from outside, or the
/// engine has ended.
async fn missing_result(engine: &DockerEngine, name: &str, since: &str) -> ExitStatus {
    // By then process 1 has missed the heartbeats and exited, even without an engine.
    let give_up = Instant::now() + HEARTBEAT_TIMEOUT;
    loop {
        let gone = match engine.container_state(name, since).await {
            Ok(ContainerState::Exited(ExitKind::OutOfMemory)) => return ExitStatus::OutOfMemory,
            Ok(ContainerState::Exited(gone)) => Ok(gone),
            Ok(ContainerState::Running) => engine.remove(name).await.map(|()| ExitKind::Unknown),
            Err(error) => Err(error),
        };
        match gone {
            Ok(gone) => {
                engine.wait_until_removed(name).await;
                return ExitStatus::WorkerLost {
                    message: format!("its container {gone}"),
                };
            }
            Err(_) if Instant::now() < give_up => sleep(RETRY_PAUSE).await,
            Err(error) => {
                let message = format!(
                    "its container was lost: {}",
                    engine.launch_error(&error, "")
                );
                return ExitStatus::WorkerLost { message };
            }
        }
    }
}

/// The exit status for an engine failure. Another worker may have a better engine, or this one
/// later. A missing image stays missing.
fn exit_status(error: LaunchError) -> ExitStatus {
    let message = error.to_string();
    match error.kind {
        LaunchFailure::Unreachable
        | LaunchFailure::Denied
        | LaunchFailure::DiskFull
        | LaunchFailure::ResourcesExhausted => ExitStatus::NoHandler { message },
        _ => ExitStatus::SpawnFailed { message },
    }
}

fn start_failed(error: LaunchError, image: &str) -> ExitStatus {
    match error.kind {
        LaunchFailure::Image => ExitStatus::SpawnFailed {
            message: format!(
                "the program of this worker is process 1 of its containers, and does not run in the image '{image}': \
                 check that the image is for this processor ({error})"
            ),
        },
        _ => exit_status(error),
    }
}

fn no_resources(error: &io::Error) -> ExitStatus {
    ExitStatus::ResourceExhausted {
        message: format!("no resources for a container: {error}"),
    }
}

/// A time before now, in the engine's format.
fn since() -> String {
    (jiff::Timestamp::now().as_second() - 1).to_string()
}

impl DockerEngine {
    /// Waits until the engine has removed a container that has ended, and removes it after a while.
    pub(super) async fn wait_until_removed(&self, name: &str) {
        let give_up = Instant::now() + REMOVE_TIMEOUT;
        let gone = async {
            while self.exists(name).await {
                sleep(POLL_INTERVAL).await;
            }
        };
        if timeout_at(give_up, gone).await.is_err() {
            let _ = self.remove(name).await;
        }
    }

    /// Whether a container of this name exists. If the engine does not answer, it counts as
    /// existing.
    async fn exists(&self, name: &str) -> bool {
        let found = async {
            self.client()?
                .inspect_container(name, None::<InspectContainerOptions>)
                .await
        };
        !matches!(found.await, Err(error) if is_not_found(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lasting_failures_fail_the_task() {
        let exit = |kind| exit_status(LaunchError::new(kind, "so"));
        for passing in [
            LaunchFailure::Unreachable,
            LaunchFailure::Denied,
            LaunchFailure::DiskFull,
        ] {
            assert_eq!(
                exit(passing),
                ExitStatus::NoHandler {
                    message: "so".into()
                }
            );
        }
        for lasting in [LaunchFailure::Image, LaunchFailure::Refused] {
            assert_eq!(
                exit(lasting),
                ExitStatus::SpawnFailed {
                    message: "so".into()
                }
            );
        }
        let ExitStatus::SpawnFailed { message } =
            start_failed(LaunchError::new(LaunchFailure::Image, "so"), "x")
        else {
            panic!()
        };
        assert!(
            message.contains("'x'") && message.contains("processor"),
            "{message}"
        );
    }
}
