//! The leash: makes a container for one attempt, and is over when that is gone.

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
    ContainerExit, DockerEngine, ExitKind, LaunchError, LaunchFailure, is_absent, is_in_the_way,
};

/// Where the answer goes.
const ANSWER: &str = "/proc/self/fd/3";
/// How long the engine may take to remove a container that has ended by itself.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);
const NOT_ASKED: u8 = 125;
const LOOK: Duration = Duration::from_millis(10);
const PAUSE: Duration = Duration::from_millis(250);

/// Keeps the command that it is told of on standard input, and answers how that ended. Returns the exit code, which tells nothing.
pub fn main() -> u8 {
    // Who has not been given it by a runner is nobody to run anything for.
    let mut answer = match File::options().write(true).open(ANSWER) {
        Ok(answer) => answer,
        Err(error) => return complain(&error),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let exit = match runtime {
        Ok(runtime) => runtime.block_on(keep()),
        Err(error) => Err(starved(&error)),
    };
    let done = exit.unwrap_or_else(ExecResult::not_started);
    answer
        .write_all(&frame::encode(&done))
        .map_or_else(|error| complain(&error), |()| 0)
}

fn complain(error: &io::Error) -> u8 {
    let _ = writeln!(
        io::stderr(),
        "raddle: cannot keep a container, which only a worker can ask for: {error}"
    );
    NOT_ASKED
}

async fn keep() -> Result<ExecResult, ExitStatus> {
    let mut signals = RunnerSignals::catch().map_err(|error| starved(&error))?;
    let charge = protocol::read_charge().map_err(|error| starved(&error))?;
    let request = &charge.request;
    raddle_runner::title::set(&title::format(request.tid, &request.name, "contained"));
    let engine = DockerEngine::of_environment().map_err(unfit)?;
    let name = config::name(request.tid, request.attempt);
    let since = since();
    let kept = run(&engine, &name, &charge, &mut signals);
    let kept = if request.attempt > 1 {
        // Whoever ran it before may have been killed.
        let (kept, swept) = tokio::join!(kept, cleanup::now());
        drop(swept);
        kept
    } else {
        kept.await
    };
    match kept? {
        Some(ended) => {
            engine.until_removed(&name).await;
            Ok(ended)
        }
        None => Err(untold(&engine, &name, &since).await),
    }
}

/// Makes a container and has it run the command. Nothing is left of one that cannot be started.
async fn run(
    engine: &DockerEngine,
    name: &str,
    charge: &ContainerParams,
    signals: &mut RunnerSignals,
) -> Result<Option<ExecResult>, ExitStatus> {
    let fault = |error: Error| unfit(engine.fault(&error, &charge.image));
    let image = engine.image(&charge.image).await.map_err(unfit)?;
    let program = ProgramFile::find().map_err(|error| starved(&error))?;
    let libraries = loaded_libraries().map_err(|error| starved(&error))?;
    let mark = ProcessIdentity::of_this_process()
        .ok_or_else(|| starved(&io::ErrorKind::NotFound.into()))?;
    let docker = engine.client().map_err(fault)?;
    let options = CreateContainerOptionsBuilder::default().name(name).build();
    let body = config::body(charge, program.path(), &libraries, &mark, &image.volumes);
    match docker.create_container(Some(options), body).await {
        Ok(_) => {}
        // The next attempt has another name.
        Err(error) if is_in_the_way(&error) => {
            return Err(ExitStatus::NoHandler {
                message: engine.fault(&error, &charge.image).to_string(),
            });
        }
        Err(error) => return Err(fault(error)),
    }
    let talked = async {
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
            // It has been opened.
            drop(program);
            Ok(())
        };
        protocol::talk(attached, &charge.request, signals, start).await
    };
    match talked.await {
        Ok(ended) => Ok(ended),
        Err(error) => {
            let _ = engine.remove(name).await;
            Err(not_started(
                engine.fault(&error, &charge.image),
                &charge.image,
            ))
        }
    }
}

/// How an attempt ends whose container has not said how: somebody has ended it from outside, or the engine has ended.
async fn untold(engine: &DockerEngine, name: &str, since: &str) -> ExitStatus {
    // By then process 1 has missed its leash, also if it runs without an engine.
    let give_up = Instant::now() + HEARTBEAT_TIMEOUT;
    loop {
        let gone = match engine.fate(name, since).await {
            Ok(ContainerExit::Gone(ExitKind::OutOfMemory)) => return ExitStatus::OutOfMemory,
            Ok(ContainerExit::Gone(gone)) => Ok(gone),
            Ok(ContainerExit::Runs) => engine.remove(name).await.map(|()| ExitKind::Untold),
            Err(error) => Err(error),
        };
        match gone {
            Ok(gone) => {
                engine.until_removed(name).await;
                return ExitStatus::WorkerLost {
                    message: format!("its container {gone}"),
                };
            }
            Err(_) if Instant::now() < give_up => sleep(PAUSE).await,
            Err(error) => {
                let message = format!("its container was lost: {}", engine.fault(&error, ""));
                return ExitStatus::WorkerLost { message };
            }
        }
    }
}

/// What an engine that does not do as it is asked means for the task: another worker may have a better one, or this one later; but an image
/// that is not there is not there the next time either.
fn unfit(error: LaunchError) -> ExitStatus {
    let message = error.to_string();
    match error.obstacle {
        LaunchFailure::Unreachable
        | LaunchFailure::Denied
        | LaunchFailure::DiskFull
        | LaunchFailure::Starved => ExitStatus::NoHandler { message },
        _ => ExitStatus::SpawnFailed { message },
    }
}

fn not_started(error: LaunchError, image: &str) -> ExitStatus {
    match error.obstacle {
        LaunchFailure::Image => ExitStatus::SpawnFailed {
            message: format!(
                "the program of this worker is process 1 of its containers, and does not run in the image '{image}': is the image made \
                 for this processor? ({error})"
            ),
        },
        _ => unfit(error),
    }
}

fn starved(error: &io::Error) -> ExitStatus {
    ExitStatus::ResourceExhausted {
        message: format!("no container could be asked for: {error}"),
    }
}

/// A moment before now, as the engine takes it.
fn since() -> String {
    (jiff::Timestamp::now().as_second() - 1).to_string()
}

impl DockerEngine {
    /// Waits for a container to be removed, as the engine does with what has ended, and removes it if that takes long.
    pub(super) async fn until_removed(&self, name: &str) {
        let give_up = Instant::now() + REMOVED_WITHIN;
        let gone = async {
            while self.has(name).await {
                sleep(LOOK).await;
            }
        };
        if timeout_at(give_up, gone).await.is_err() {
            let _ = self.remove(name).await;
        }
    }

    /// Whether there is a container of this name. An engine that does not answer is asked again.
    async fn has(&self, name: &str) -> bool {
        let found = async {
            self.client()?
                .inspect_container(name, None::<InspectContainerOptions>)
                .await
        };
        !matches!(found.await, Err(error) if is_absent(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_mended_by_waiting_is_a_failure() {
        let exit = |obstacle| unfit(LaunchError::new(obstacle, "so"));
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
            not_started(LaunchError::new(LaunchFailure::Image, "so"), "x")
        else {
            panic!()
        };
        assert!(
            message.contains("'x'") && message.contains("processor"),
            "{message}"
        );
    }
}
