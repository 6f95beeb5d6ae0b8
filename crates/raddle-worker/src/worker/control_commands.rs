//! Control commands: receiving them from the broker, and the broker calls that carry them out.
//! `apply_command.rs` decides what a command does.

use std::{sync::Arc, time::Duration};

use raddle_broker::{AttemptId, Broker, ControlDelivery, Error};
use raddle_model::{ControlMessage, QueueName, Tid, control::ControlReply, queue_name::TaskQueue};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    attempt_tracing,
    core::{ERROR_PAUSE, WAIT},
    shutdown_deadline::DeadlineWatch,
};

/// Age of a worker when it starts to receive control commands.
pub const LISTEN_AFTER: Duration = Duration::from_millis(20);

/// Forwards control commands to the worker's loop. It starts after [`LISTEN_AFTER`], so that a
/// worker that ends sooner does not pay for the subscription.
pub async fn receive_commands(
    broker: Arc<dyn Broker>,
    tid: Tid,
    commands: mpsc::UnboundedSender<ControlDelivery>,
) {
    tokio::time::sleep(LISTEN_AFTER).await;
    loop {
        match broker.recv_commands(tid, WAIT).await {
            Ok(deliveries) => {
                for delivery in deliveries {
                    if commands.send(delivery).is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, "control commands cannot be received");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// A broker call that follows from a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandJob {
    /// Reply for the worker, or for a task that it holds.
    Reply {
        /// The worker or task.
        tid: Tid,
        /// The reply.
        reply: ControlReply,
    },
    /// Record that an attempt is paused or resumed.
    RecordPause {
        /// The attempt.
        attempt_id: AttemptId,
        /// Paused, or resumed.
        paused: bool,
    },
    /// Send the command to the current owner of the task.
    Forward {
        /// The task.
        tid: Tid,
        /// The command.
        message: ControlMessage,
    },
    /// Remove expired records.
    Purge,
}

/// Runs [`CommandJob`]s one after the other: outside the worker's loop, which a slow server would
/// block, and outside the `CompletionBatcher`, where they would wait behind results.
pub struct CommandJobs {
    queue: mpsc::UnboundedSender<CommandJob>,
    task: JoinHandle<()>,
}

impl CommandJobs {
    /// The channel needs no bound: each command makes one or two jobs, and commands arrive over one
    /// broker connection.
    pub fn start(broker: Arc<dyn Broker>, mut deadline: DeadlineWatch) -> Self {
        let (queue, mut jobs) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(job) = jobs.recv().await {
                if deadline.limit(run_job(&*broker, job)).await.is_none() {
                    tracing::warn!(
                        "the broker does not accept replies to control commands: dropping them"
                    );
                    return;
                }
            }
        });
        Self { queue, task }
    }

    /// Queues a job.
    pub fn push(&self, job: CommandJob) {
        // Fails only after the shutdown deadline.
        let _ = self.queue.send(job);
    }

    /// Runs the remaining jobs: the sender of the last command may wait for its reply.
    pub async fn close(self) {
        drop(self.queue);
        let _ = self.task.await;
    }
}

async fn run_job(broker: &dyn Broker, job: CommandJob) {
    match job {
        CommandJob::Reply { tid, reply } => {
            let body = serde_json::to_string(&reply).expect("a reply has only string keys");
            if let Err(error) = broker
                .put(QueueName::Task(tid, TaskQueue::CtrlOut), vec![body])
                .await
            {
                tracing::warn!(%tid, %error, "could not reply to a control command");
            }
        }
        CommandJob::RecordPause { attempt_id, paused } => {
            if let Err(error) = broker.mark_paused(attempt_id, paused).await {
                attempt_tracing::log!(warn, attempt_id, %error, "a pause could not be recorded");
            }
        }
        CommandJob::Purge => super::service::purge(broker).await,
        CommandJob::Forward { tid, message } => match broker.control(tid, message).await {
            Ok(_) | Err(Error::Finished(..) | Error::NotFound(_)) => {}
            Err(error) => tracing::warn!(%tid, %error, "a control command was lost"),
        },
    }
}
