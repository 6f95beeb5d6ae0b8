//! One container, from its start to its end.

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
    /// It is to be made, for this spawner.
    New(Tid),
    /// Another has left it, and it runs.
    Left,
}

/// What a container says.
type ContainerWords = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;

/// How long a worker may take to say who it is. What is no worker, and does not end either, is not kept.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// The pauses between two tries to reach an engine that is gone.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Looks after a container until it is gone, and tells of it.
pub(super) async fn look_after(
    yard: Arc<DockerState>,
    id: LaunchId,
    origin: ContainerOrigin,
    mut orders: mpsc::UnboundedReceiver<BroadcastCommand>,
) {
    let since = moment_before();
    let begun = match origin {
        ContainerOrigin::New(spawner) => begin(&yard, &id, spawner).await,
        // All that it has said, from the beginning.
        ContainerOrigin::Left => Ok(said_before(&yard, &id)),
    };
    let news = match begun {
        Err(error) => WorkerEvent::Failed(error),
        Ok(words) => {
            let mut watch = ContainerWatch {
                yard: &yard,
                id: &id,
                since,
                stops: false,
                is_ready: false,
                said: ReadinessParser::default(),
                out: OutputLine::default(),
                err: ContainerOutput::default(),
            };
            let by =
                matches!(origin, ContainerOrigin::New(_)).then(|| Instant::now() + READY_WITHIN);
            watch.until_gone(words, by, &mut orders).await
        }
    };
    let _ = yard.tell.send((id, news));
}

/// Makes a container and starts it. Nothing is left of one that cannot be started.
async fn begin(
    yard: &DockerState,
    id: &LaunchId,
    spawner: Tid,
) -> Result<ContainerWords, LaunchError> {
    let _turn = yard.turns.acquire().await.expect("never closed");
    yard.checked.get_or_try_init(|| check(yard)).await?;
    let fault = |error: Error| yard.engine.launch_error(&error, &yard.model.image);
    let engine = yard.engine.client().map_err(fault)?;
    let options = CreateContainerOptionsBuilder::default()
        .name(id.as_str())
        .build();
    engine
        .create_container(Some(options), yard.model.body(id.as_str(), spawner))
        .await
        .map_err(fault)?;
    let start = async {
        // Before it is started: what it says first, and last, may be said within a moment.
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdout(true)
            .stderr(true)
            .build();
        let words = engine
            .attach_container(id.as_str(), Some(options))
            .await?
            .output;
        for network in yard.model.allowance.networks.iter().skip(1) {
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
        Ok(words)
    };
    match start.await {
        Ok(words) => Ok(words),
        Err(error) => {
            if let Err(error) = yard.engine.remove(id.as_str()).await {
                tracing::warn!(container = %id, %error, "a container that could not be started is left behind");
            }
            Err(fault(error))
        }
    }
}

/// Whether workers can be entrusted to the engine.
async fn check(yard: &DockerState) -> Result<(), LaunchError> {
    let engine = yard.engine.info().await?;
    if engine.has_seccomp || yard.model.seccomp.is_some() {
        return Ok(());
    }
    let reason = "the Docker engine runs containers without a seccomp filter: start it with one, or name a profile in \
                  spawner.container.seccomp";
    Err(LaunchError::new(LaunchFailure::Refused, reason))
}

fn said_before(yard: &DockerState, id: &LaunchId) -> ContainerWords {
    let options = LogsOptionsBuilder::default()
        .follow(true)
        .stdout(true)
        .stderr(true)
        .build();
    match yard.engine.client() {
        Ok(engine) => Box::pin(engine.logs(id.as_str(), Some(options))),
        Err(error) => Box::pin(futures_util::stream::iter([Err(error)])),
    }
}

/// A moment before now, as the engine takes it: the clocks are the same, but not read at the same time.
fn moment_before() -> String {
    let second_ago = jiff::Timestamp::now().as_second() - 1;
    second_ago.to_string()
}

struct ContainerWatch<'a> {
    yard: &'a DockerState,
    id: &'a LaunchId,
    /// It was not there before.
    since: String,
    /// It is to stop, once it hears that: process 1 of a container feels no signal that it has not asked for, and a worker asks for it
    /// before it says who it is.
    stops: bool,
    /// It has said who it is.
    is_ready: bool,
    said: ReadinessParser,
    out: OutputLine,
    err: ContainerOutput,
}

impl ContainerWatch<'_> {
    async fn until_gone(
        &mut self,
        mut words: ContainerWords,
        ready_by: Option<Instant>,
        orders: &mut mpsc::UnboundedReceiver<BroadcastCommand>,
    ) -> WorkerEvent {
        let mut late = std::pin::pin!(sleep_until(ready_by.unwrap_or_else(Instant::now)));
        loop {
            tokio::select! {
                // What it says comes last: one that does not stop to speak is told to stop all the same.
                biased;
                Some(order) = orders.recv() => match order {
                    BroadcastCommand::Stop | BroadcastCommand::GiveBack if !self.is_ready => self.stops = true,
                    order => self.apply_command(order).await,
                },
                () = &mut late, if ready_by.is_some() && !self.is_ready => {
                    self.apply_command(BroadcastCommand::Kill).await;
                    let (image, secs) = (&self.yard.model.image, READY_WITHIN.as_secs());
                    let reason = format!("a container of the image '{image}' was no worker within {secs} s: is its entrypoint this program?");
                    return WorkerEvent::Failed(LaunchError::new(LaunchFailure::Image, reason));
                }
                word = words.next() => match word {
                    Some(Ok(word)) => {
                        self.hear(&word);
                        if self.stops && self.is_ready {
                            self.stops = false;
                            self.apply_command(BroadcastCommand::Stop).await;
                        }
                    }
                    // It is over, or the engine is.
                    Some(Err(_)) | None => {
                        self.err.rest(self.id.as_str(), pass_on);
                        match self.fate().await {
                            ContainerState::Exited(gone) => return WorkerEvent::Gone(gone),
                            ContainerState::Running => {
                                self.said = ReadinessParser::default();
                                words = said_before(self.yard, self.id);
                                // One that cannot be followed is looked at once in a while.
                                sleep(FIRST_PAUSE).await;
                            }
                        }
                    }
                },
            }
        }
    }

    fn hear(&mut self, word: &LogOutput) {
        match word {
            LogOutput::StdOut { message } => {
                let Self {
                    yard,
                    id,
                    said,
                    out,
                    is_ready,
                    ..
                } = self;
                out.take(message, |line| {
                    if let Some(news) = said.line(id, &String::from_utf8_lossy(line)) {
                        *is_ready = true;
                        let _ = yard.tell.send(((*id).clone(), news));
                    }
                });
            }
            LogOutput::StdErr { message } | LogOutput::Console { message } => {
                self.err.take(self.id.as_str(), message, pass_on);
            }
            LogOutput::StdIn { .. } => {}
        }
    }

    /// What has become of it. An engine that does not answer is waited for: it may be restarted.
    async fn fate(&self) -> ContainerState {
        let mut failures = 0;
        loop {
            match self
                .yard
                .engine
                .container_state(self.id.as_str(), &self.since)
                .await
            {
                Ok(fate) => return fate,
                Err(error) => {
                    failures += 1;
                    if failures == 1 {
                        let error = self
                            .yard
                            .engine
                            .launch_error(&error, &self.yard.model.image);
                        tracing::warn!(container = %self.id, %error, "what has become of a container cannot be told yet");
                    }
                    sleep(ExponentialBackoff::new(FIRST_PAUSE, LONGEST_PAUSE).pause(failures))
                        .await;
                }
            }
        }
    }

    async fn apply_command(&self, order: BroadcastCommand) {
        let done = match order {
            // One that is to give back what it runs is told so by the broker.
            BroadcastCommand::Stop | BroadcastCommand::GiveBack => self.signal("SIGTERM").await,
            BroadcastCommand::Kill => self.yard.engine.remove(self.id.as_str()).await,
        };
        match done {
            Ok(()) => {}
            // It has ended meanwhile.
            Err(error) if is_not_found(&error) || is_conflict(&error) => {}
            Err(error) => {
                tracing::warn!(container = %self.id, %error, "a container could not be told to end")
            }
        }
    }

    async fn signal(&self, signal: &str) -> Result<(), Error> {
        let options = KillContainerOptionsBuilder::default()
            .signal(signal)
            .build();
        self.yard
            .engine
            .client()?
            .kill_container(self.id.as_str(), Some(options))
            .await
    }
}

/// Tells people what a worker says.
fn pass_on(line: String) {
    // Nobody may be reading.
    let _ = writeln!(io::stderr().lock(), "{line}");
}
