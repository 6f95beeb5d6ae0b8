//! Output of an attempt on its way to the broker, and the orders that come meanwhile on theirs to the runner: neither waits for the other.

use std::{future::Future, time::Duration};

use raddle_broker::{AttemptId, Broker, OutputStream};
use raddle_runner::{Runner, RunnerCommand, RunnerLost};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use super::{attempt_tracing, slot::SlotCommand};

/// How long output waits for room, or for a server: as long as a person may need to make some, and no longer, because the task waits with it.
pub(super) const OUTPUT_PATIENCE: Duration = Duration::from_secs(10);
/// How long when the task has been killed.
const LAST_OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
pub(super) const OUTPUT_PAUSE: Duration = Duration::from_millis(250);
/// It is said once a second that it waits.
const SAID_EVERY: u32 = 4;

/// Orders about an attempt, on their way to its runner.
pub(super) struct RunnerCommands<'a, N> {
    queue: &'a mut mpsc::UnboundedReceiver<SlotCommand>,
    /// Takes note of each that is passed on.
    note: N,
    killed: bool,
    /// The worker is gone without waiting for us: nobody wants to know how this ends.
    forsaken: bool,
    /// There was no time left for output.
    output_lost: bool,
}

impl<'a, N: Fn(RunnerCommand)> RunnerCommands<'a, N> {
    pub(super) fn new(queue: &'a mut mpsc::UnboundedReceiver<SlotCommand>, note: N) -> Self {
        Self {
            queue,
            note,
            killed: false,
            forsaken: false,
            output_lost: false,
        }
    }

    /// The next one. Dropping it in between loses nothing.
    pub(super) async fn next(&mut self) -> Option<SlotCommand> {
        if self.forsaken {
            std::future::pending().await
        } else {
            self.queue.recv().await
        }
    }

    pub(super) async fn apply_command(
        &mut self,
        job: Option<SlotCommand>,
        runner: &mut Runner,
    ) -> Result<(), RunnerLost> {
        let order = match job {
            Some(SlotCommand::Order(order)) => order,
            Some(SlotCommand::Run(claim)) => {
                attempt_tracing::log!(
                    error,
                    claim.attempt_id,
                    "a task was given to a slot that is in use"
                );
                return Ok(());
            }
            None => {
                self.forsaken = true;
                RunnerCommand::Kill
            }
        };
        self.killed |= order == RunnerCommand::Kill;
        (self.note)(order);
        runner.send(order).await
    }

    /// Obeys while output is being kept, and gives the output up when that takes too long.
    pub(super) async fn obey_while(
        &mut self,
        storing: impl Future<Output = ()>,
        attempt_id: AttemptId,
        runner: &mut Runner,
    ) -> Result<(), RunnerLost> {
        if !self.output_lost && self.obey_during(storing, runner).await?.is_none() {
            attempt_tracing::log!(
                error,
                attempt_id,
                "output was lost, for it could not be kept for too long"
            );
            // Of one that is killed, nothing more is waited for.
            self.output_lost = self.killed;
        }
        Ok(())
    }

    /// Obeys while something is being done, and gives that up when it takes too long.
    pub(super) async fn obey_during<T>(
        &mut self,
        doing: impl Future<Output = T>,
        runner: &mut Runner,
    ) -> Result<Option<T>, RunnerLost> {
        tokio::pin!(doing);
        let began = Instant::now();
        loop {
            let patience = if self.killed {
                LAST_OUTPUT_PATIENCE
            } else {
                OUTPUT_PATIENCE
            };
            tokio::select! {
                biased;
                done = &mut doing => return Ok(Some(done)),
                job = self.next() => self.apply_command(job, runner).await?,
                () = sleep_until(began + patience) => return Ok(None),
            }
        }
    }
}

/// Adds to the output of an attempt, and tries again what may succeed later.
pub(super) async fn store(
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
    for tried in 0_u32.. {
        match broker
            .append_output(attempt_id, stream, bytes.clone())
            .await
        {
            Ok(()) => return,
            // The command waits too, when its pipe is full: better late than never.
            Err(error) if error.is_retryable() => {
                if tried % SAID_EVERY == 0 {
                    attempt_tracing::log!(error, attempt_id, %error, "output cannot be kept yet");
                }
                sleep(OUTPUT_PAUSE).await;
            }
            Err(error) => {
                attempt_tracing::log!(error, attempt_id, %error, "output was lost");
                return;
            }
        }
    }
}
