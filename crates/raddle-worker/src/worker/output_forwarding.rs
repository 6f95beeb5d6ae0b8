//! Forwarding an attempt's output to the broker and commands to its runner, without either waiting
//! for the other.

use std::{future::Future, time::Duration};

use raddle_broker::{AttemptId, Broker, OutputStream};
use raddle_runner::{Runner, RunnerCommand, RunnerLost};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use super::{attempt_tracing, slot::SlotCommand};

/// How long output waits for space or for a server: long enough for a person to free some space.
/// The task waits with it.
pub(super) const OUTPUT_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for a task that was killed.
const KILLED_OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
pub(super) const OUTPUT_RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Retries per log line: one line each second.
const LOG_EVERY: u32 = 4;

/// Relays commands to the runner of an attempt.
pub(super) struct RunnerCommandRelay<'a, N> {
    queue: &'a mut mpsc::UnboundedReceiver<SlotCommand>,
    /// Called with each command that is relayed.
    on_relay: N,
    killed: bool,
    /// The worker's loop is gone and does not wait for the end of this attempt.
    worker_is_gone: bool,
    /// Storing output has timed out after a kill.
    output_lost: bool,
}

impl<'a, N: Fn(RunnerCommand)> RunnerCommandRelay<'a, N> {
    pub(super) fn new(queue: &'a mut mpsc::UnboundedReceiver<SlotCommand>, on_relay: N) -> Self {
        Self {
            queue,
            on_relay,
            killed: false,
            worker_is_gone: false,
            output_lost: false,
        }
    }

    /// The next command. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<SlotCommand> {
        if self.worker_is_gone {
            std::future::pending().await
        } else {
            self.queue.recv().await
        }
    }

    pub(super) async fn relay(
        &mut self,
        command: Option<SlotCommand>,
        runner: &mut Runner,
    ) -> Result<(), RunnerLost> {
        let command = match command {
            Some(SlotCommand::Send(command)) => command,
            Some(SlotCommand::Run(claim)) => {
                attempt_tracing::log!(
                    error,
                    claim.attempt_id,
                    "a task was sent to a slot that is in use"
                );
                return Ok(());
            }
            None => {
                self.worker_is_gone = true;
                RunnerCommand::Kill
            }
        };
        self.killed |= command == RunnerCommand::Kill;
        (self.on_relay)(command);
        runner.send(command).await
    }

    /// Relays commands while output is stored. The output is dropped when that takes too long.
    pub(super) async fn relay_while_storing(
        &mut self,
        storing: impl Future<Output = ()>,
        attempt_id: AttemptId,
        runner: &mut Runner,
    ) -> Result<(), RunnerLost> {
        if !self.output_lost && self.relay_during(storing, runner).await?.is_none() {
            attempt_tracing::log!(
                error,
                attempt_id,
                "output was lost: it could not be stored in time"
            );
            // After a kill, do not wait for any further output.
            self.output_lost = self.killed;
        }
        Ok(())
    }

    /// Relays commands while a future runs. Returns `None` when that takes too long.
    pub(super) async fn relay_during<T>(
        &mut self,
        future: impl Future<Output = T>,
        runner: &mut Runner,
    ) -> Result<Option<T>, RunnerLost> {
        tokio::pin!(future);
        let began = Instant::now();
        loop {
            let limit = if self.killed {
                KILLED_OUTPUT_TIMEOUT
            } else {
                OUTPUT_TIMEOUT
            };
            tokio::select! {
                biased;
                done = &mut future => return Ok(Some(done)),
                command = self.next() => self.relay(command, runner).await?,
                () = sleep_until(began + limit) => return Ok(None),
            }
        }
    }
}

/// Appends to the output of an attempt, and retries errors that may pass.
pub(super) async fn store_output(
    broker: &dyn Broker,
    attempt_id: AttemptId,
    stream: raddle_runner::OutputChannel,
    bytes: Vec<u8>,
) {
    let stream = match stream {
        raddle_runner::OutputChannel::Stdout => OutputStream::Stdout,
        raddle_runner::OutputChannel::Stderr => OutputStream::Stderr,
        raddle_runner::OutputChannel::Reply => return,
    };
    for tries in 0_u32.. {
        match broker
            .append_output(attempt_id, stream, bytes.clone())
            .await
        {
            Ok(()) => return,
            // The command blocks too when its pipe is full. Late output is better than none.
            Err(error) if error.is_retryable() => {
                if tries % LOG_EVERY == 0 {
                    attempt_tracing::log!(error, attempt_id, %error, "output cannot be stored yet: retrying");
                }
                sleep(OUTPUT_RETRY_PAUSE).await;
            }
            Err(error) => {
                attempt_tracing::log!(error, attempt_id, %error, "output was lost");
                return;
            }
        }
    }
}
