//! Watching one container, from its start to its end.

use std::{
    io::{self, Write},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use bollard::{
    container::LogOutput,
    errors::Error,
    models::NetworkConnectRequest,
    query_parameters::{
        AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, KillContainerOptionsBuilder,
        LogsOptionsBuilder, StartContainerOptions,
    },
};
use futures_util::{Stream, StreamExt};
use raddle_model::{ExponentialBackoff, Tid};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use raddle_container::{ContainerState, LaunchError, LaunchFailure, is_conflict, is_not_found};

use super::{
    container_output::{ContainerOutput, OutputLine},
    launcher::DockerState,
};
use crate::{
    launcher::{BroadcastCommand, LaunchId, WorkerEvent},
    readiness::ReadinessParser,
};

/// Where a container comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum ContainerOrigin {
    /// It must be created, for this spawner.
    New(Tid),
    /// It runs, and its spawner is dead.
    Adopted,
}

/// Output of a container.
type OutputStream = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;

/// How long a worker may take to report its id. A container that is no worker is killed after that.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Pauses between tries to reach the engine.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Watches a container until it is gone, and reports its events.
pub(super) async fn watch_container(
    state: Arc<DockerState>,
    id: LaunchId,
    origin: ContainerOrigin,
    mut commands: mpsc::UnboundedReceiver<BroadcastCommand>,
) {
    let since = one_second_ago();
    let begun = match origin {
        ContainerOrigin::New(spawner) => create_and_start(&state, &id, spawner).await,
        // All its output from the start.
        ContainerOrigin::Adopted => Ok(read_log(&state, &id)),
    };
    let event = match begun {
        Err(error) => WorkerEvent::Failed(error),
        Ok(output) => {
            let mut watch = ContainerWatch {
                state: &state,
                id: &id,
                since,
                stop_when_ready: false,
                is_ready: false,
                readiness: ReadinessParser::default(),
                stdout: OutputLine::default(),
                stderr: ContainerOutput::default(),
            };
            let by =
                matches!(origin, ContainerOrigin::New(_)).then(|| Instant::now() + READY_TIMEOUT);
            watch.run(output, by, &mut commands).await
        }
    };
    let _ = state.events_tx.send((id, event));
}

/// Creates and starts a container. One that cannot start is removed.
async fn create_and_start(
    state: &DockerState,
    id: &LaunchId,
    spawner: Tid,
) -> Result<OutputStream, LaunchError> {
    let _permit = state.start_permits.acquire().await.expect("never closed");
    state.checked.get_or_try_init(|| check(state)).await?;
    let to_launch_error = |error: Error| state.engine.launch_error(&error, &state.template.image);
    let engine = state.engine.client().map_err(to_launch_error)?;
    let options = CreateContainerOptionsBuilder::default()
        .name(id.as_str())
        .build();
    engine
        .create_container(
            Some(options),
            state.template.create_body(id.as_str(), spawner),
        )
        .await
        .map_err(to_launch_error)?;
    let start = async {
        // Attach before the start, so that no output is missed.
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdout(true)
            .stderr(true)
            .build();
        let output = engine
            .attach_container(id.as_str(), Some(options))
            .await?
            .output;
        for network in state.template.limits.networks.iter().skip(1) {
            let container = id.as_str().to_owned();
            engine
                .connect_network(
                    network,
                    NetworkConnectRequest {
                        container,
                        endpoint_config: None,
                    },
                )
                .await?;
        }
        engine
            .start_container(id.as_str(), None::<StartContainerOptions>)
            .await?;
        Ok(output)
    };
    match start.await {
        Ok(output) => Ok(output),
        Err(error) => {
            if let Err(error) = state.engine.remove(id.as_str()).await {
                tracing::warn!(container = %id, %error, "could not remove a container that could not start");
            }
            Err(to_launch_error(error))
        }
    }
}

/// Checks that containers of the engine have a seccomp filter.
async fn check(state: &DockerState) -> Result<(), LaunchError> {
    let engine = state.engine.info().await?;
    if engine.has_seccomp || state.template.seccomp.is_some() {
        return Ok(());
    }
    let reason = "the Docker engine is_running containers without a seccomp filter: start it with one, or name a profile in \
                  spawner.container.seccomp";
    Err(LaunchError::new(LaunchFailure::Refused, reason))
}

fn read_log(state: &DockerState, id: &LaunchId) -> OutputStream {
    let options = LogsOptionsBuilder::default()
        .follow(true)
        .stdout(true)
        .stderr(true)
        .build();
    match state.engine.client() {
        Ok(engine) => Box::pin(engine.logs(id.as_str(), Some(options))),
        Err(error) => Box::pin(futures_util::stream::iter([Err(error)])),
    }
}

/// A time before now, in the engine's format: both read the same clock, but not at the same time.
fn one_second_ago() -> String {
    let second_ago = jiff::Timestamp::now().as_second() - 1;
    second_ago.to_string()
}

struct ContainerWatch<'a> {
    state: &'a DockerState,
    id: &'a LaunchId,
    /// It was created after this.
    since: String,
    /// Stop it when it is ready: process 1 of a container ignores signals without a handler, and a
    /// worker installs its handlers before it reports its id.
    stop_when_ready: bool,
    /// It has reported its id.
    is_ready: bool,
    readiness: ReadinessParser,
    stdout: OutputLine,
    stderr: ContainerOutput,
}

impl ContainerWatch<'_> {
    async fn run(
        &mut self,
        mut output: OutputStream,
        ready_by: Option<Instant>,
        commands: &mut mpsc::UnboundedReceiver<BroadcastCommand>,
    ) -> WorkerEvent {
        let mut late = std::pin::pin!(sleep_until(ready_by.unwrap_or_else(Instant::now)));
        loop {
            tokio::select! {
                // Output comes last, so that a chatty container can be stopped.
                biased;
                Some(command) = commands.recv() => match command {
                    BroadcastCommand::Stop | BroadcastCommand::Release if !self.is_ready => self.stop_when_ready = true,
                    command => self.apply_command(command).await,
                },
                () = &mut late, if ready_by.is_some() && !self.is_ready => {
                    self.apply_command(BroadcastCommand::Kill).await;
                    let (image, secs) = (&self.state.template.image, READY_TIMEOUT.as_secs());
                    let reason = format!("a container of the image '{image}' reported no worker within {secs} s: check that its entrypoint is this program");
                    return WorkerEvent::Failed(LaunchError::new(LaunchFailure::Image, reason));
                }
                word = output.next() => match word {
                    Some(Ok(word)) => {
                        self.handle_output(&word);
                        if self.stop_when_ready && self.is_ready {
                            self.stop_when_ready = false;
                            self.apply_command(BroadcastCommand::Stop).await;
                        }
                    }
                    // The container or the engine has ended.
                    Some(Err(_)) | None => {
                        self.stderr.finish(self.id.as_str(), write_stderr);
                        match self.state().await {
                            ContainerState::Exited(gone) => return WorkerEvent::Exited(gone),
                            ContainerState::Running => {
                                self.readiness = ReadinessParser::default();
                                output = read_log(self.state, self.id);
                                // Without this pause, an engine that cannot be followed would be
                                // polled without limit.
                                sleep(FIRST_PAUSE).await;
                            }
                        }
                    }
                },
            }
        }
    }

    fn handle_output(&mut self, word: &LogOutput) {
        match word {
            LogOutput::StdOut { message } => {
                let Self {
                    state,
                    id,
                    readiness,
                    stdout,
                    is_ready,
                    ..
                } = self;
                stdout.push(message, |line| {
                    if let Some(event) = readiness.parse_line(id, &String::from_utf8_lossy(line)) {
                        *is_ready = true;
                        let _ = state.events_tx.send(((*id).clone(), event));
                    }
                });
            }
            LogOutput::StdErr { message } | LogOutput::Console { message } => {
                self.stderr.push(self.id.as_str(), message, write_stderr);
            }
            LogOutput::StdIn { .. } => {}
        }
    }

    /// The state of the container. Waits for an engine that does not answer: it may be restarting.
    async fn state(&self) -> ContainerState {
        let mut failures = 0;
        loop {
            match self
                .state
                .engine
                .container_state(self.id.as_str(), &self.since)
                .await
            {
                Ok(state) => return state,
                Err(error) => {
                    failures += 1;
                    if failures == 1 {
                        let error = self
                            .state
                            .engine
                            .launch_error(&error, &self.state.template.image);
                        tracing::warn!(container = %self.id, %error, "the state of a container is unknown: retrying");
                    }
                    sleep(ExponentialBackoff::new(FIRST_PAUSE, MAX_PAUSE).pause(failures)).await;
                }
            }
        }
    }

    async fn apply_command(&self, command: BroadcastCommand) {
        let done = match command {
            // A worker that should release its task gets that command through the broker.
            BroadcastCommand::Stop | BroadcastCommand::Release => self.signal("SIGTERM").await,
            BroadcastCommand::Kill => self.state.engine.remove(self.id.as_str()).await,
        };
        match done {
            Ok(()) => {}
            // It has ended meanwhile.
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => {
                tracing::warn!(container = %self.id, %error, "a container could not be stopped")
            }
        }
    }

    async fn signal(&self, signal: &str) -> Result<(), Error> {
        let options = KillContainerOptionsBuilder::default()
            .signal(signal)
            .build();
        self.state
            .engine
            .client()?
            .kill_container(self.id.as_str(), Some(options))
            .await
    }
}

/// Writes a line of a worker's log.
fn write_stderr(line: String) {
    // Stderr may be closed.
    let _ = writeln!(io::stderr().lock(), "{line}");
}
