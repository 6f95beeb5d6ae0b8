//! Control words on their way: in from the broker, and the answers to them out again. What a word means is decided in `obey.rs`.

use std::{sync::Arc, time::Duration};

use raddle_broker::{AttemptId, Broker, ControlDelivery, Error};
use raddle_model::{ControlMessage, QueueName, Tid, control::ControlReply, queue_name::TaskQueue};
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    attempt_tracing,
    core::{ERROR_PAUSE, WAIT},
    shutdown_deadline::DeadlineWatch,
};

/// How old a worker is when it begins to listen to control words.
pub(crate) const LISTEN_AFTER: Duration = Duration::from_millis(20);

/// Passes on control messages as they come. A word in the first moment of a worker's life waits for [`LISTEN_AFTER`]; a worker that lives no longer
/// does not pay for listening.
pub(crate) async fn listen(
    broker: Arc<dyn Broker>,
    tid: Tid,
    words: mpsc::UnboundedSender<ControlDelivery>,
) {
    tokio::time::sleep(LISTEN_AFTER).await;
    loop {
        match broker.recv_commands(tid, WAIT).await {
            Ok(deliveries) => {
                for delivery in deliveries {
                    if words.send(delivery).is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, "control messages cannot be read");
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// What a word asks of the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CommandJob {
    /// Answer for the worker, or for a task that it has.
    Reply { of: Tid, reply: ControlReply },
    /// Note that an attempt stands still, or goes on.
    Paused { attempt_id: AttemptId, paused: bool },
    /// Give the word to whoever has the task now.
    PassOn { tid: Tid, message: ControlMessage },
    /// Remove what has expired.
    Purge,
}

/// Runs errands, one after the other: not in the worker's loop, which a server that is away would hold up, and not in the ledger, where they
/// would wait behind results that cannot be written.
pub(crate) struct CommandJobs {
    queue: mpsc::UnboundedSender<CommandJob>,
    task: JoinHandle<()>,
}

impl CommandJobs {
    /// There are one or two for each word, and words come as fast as one connection to the broker brings them: the channel needs no bound.
    pub(crate) fn start(broker: Arc<dyn Broker>, mut pace: DeadlineWatch) -> Self {
        let (queue, mut errands) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(errand) = errands.recv().await {
                if pace.bound(run(&*broker, errand)).await.is_none() {
                    tracing::warn!(
                        "the broker takes no answers to control messages: they are left"
                    );
                    return;
                }
            }
        });
        Self { queue, task }
    }

    pub(crate) fn run(&self, errand: CommandJob) {
        // Refused only when there was no time left for those before it.
        let _ = self.queue.send(errand);
    }

    /// Runs what is left: whoever sent the last word may wait for its answer.
    pub(crate) async fn close(self) {
        drop(self.queue);
        let _ = self.task.await;
    }
}

async fn run(broker: &dyn Broker, errand: CommandJob) {
    match errand {
        CommandJob::Reply { of, reply } => {
            let body = serde_json::to_string(&reply).expect("a reply has only string keys");
            if let Err(error) = broker
                .put(QueueName::Task(of, TaskQueue::CtrlOut), vec![body])
                .await
            {
                tracing::warn!(tid = %of, %error, "a control message could not be answered");
            }
        }
        CommandJob::Paused { attempt_id, paused } => {
            if let Err(error) = broker.mark_paused(attempt_id, paused).await {
                attempt_tracing::log!(warn, attempt_id, %error, "the pause could not be noted");
            }
        }
        CommandJob::Purge => super::service::purge(broker).await,
        CommandJob::PassOn { tid, message } => match broker.control(tid, message).await {
            Ok(_) | Err(Error::Finished(..) | Error::NotFound(_)) => {}
            Err(error) => tracing::warn!(%tid, %error, "a control message was lost"),
        },
    }
}
