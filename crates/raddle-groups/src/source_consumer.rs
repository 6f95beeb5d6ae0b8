//! `SourceConsumer`: turns each message of a source into one task per subscribed worker, and
//! removes the message, in one transaction. So no message is lost or doubled, however many managers
//! do this and whenever one is killed.
//!
//! Entries of a Redis stream are messages too: a source `stream:NAME` is the queue with this name,
//! and [`transfer_stream`] moves the entries there.
//!
//! Messages are read before the subscribers, so a worker that was declared before a message was
//! written gets it.
//!
//! A failure blocks nothing else. A message that is no valid task for a worker, because it is too
//! large or because the worker's event spec is refused, goes to the worker's queue `<slug>.dead`,
//! in the same transaction as the tasks of other workers. A message that the broker refuses for
//! another reason stays and is retried, while later messages go on.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use raddle_broker::{
    Broker, Error, Message, MessageTransaction, Messages, NewMessage, NewTask, PeekRequest, Result,
};
use raddle_broker_connect::{BrokerUrl, open_stream};
use raddle_model::{QueueName, TaskSpec, Tid};
use tokio::time::{Instant, sleep};

use super::{desired_state::DesiredStates, process::with_message};

/// Most messages in a transaction: other writers wait for it.
const BATCH: u32 = 64;
const WAIT: Duration = Duration::from_secs(3600);
/// Pause after a broker error.
const ERROR_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 500 });
/// Pause before a refused message is retried. Later messages go on meanwhile.
const REFUSED_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 5000 });

/// Consumes a source, without end. Dropping it in the middle of a transaction is safe.
pub(super) async fn consume_source(broker: Arc<dyn Broker>, source: String) {
    let Ok(queue) = source.parse::<QueueName>() else {
        return;
    };
    let mut consumer = SourceConsumer::new(&*broker, queue, source.clone());
    let mut logged = None;
    loop {
        let result = consumer.step().await;
        pause_after_error(&source, result, &mut logged).await;
    }
}

/// The stream of a source, if it is one.
pub(super) fn stream_of(source: &str) -> Option<&str> {
    source.strip_prefix("stream:")
}

/// Moves the entries of a stream to the queue of its source, without end. If it is dropped, entries
/// that were read and not moved are left to the next consumer.
pub(super) async fn transfer_stream(url: BrokerUrl, source: String) {
    let (Some(stream), Ok(queue)) = (stream_of(&source), source.parse::<QueueName>()) else {
        return;
    };
    let (mut opened, mut logged) = (None, None);
    loop {
        let result = match &mut opened {
            None => open_stream(&url, stream, queue.clone())
                .await
                .map(|stream| opened = Some(stream)),
            Some(stream) => stream.transfer().await.map(drop),
        };
        pause_after_error(&source, result, &mut logged).await;
    }
}

/// Logs each error once, and pauses before the next try.
async fn pause_after_error(source: &str, result: Result<()>, logged: &mut Option<String>) {
    let Err(error) = result else {
        *logged = None;
        return;
    };
    let words = error.to_string();
    if logged.as_ref() != Some(&words) {
        tracing::error!(source, %error, "messages cannot be turned into tasks: retrying");
    }
    *logged = Some(words);
    sleep(ERROR_PAUSE).await;
}

/// A source, and the position in it.
struct SourceConsumer<'a> {
    broker: &'a dyn Messages,
    queue: QueueName,
    source: String,
    /// Messages up to here are handled. Messages without subscribers are skipped.
    after: u64,
    /// The first refused message, and when to retry.
    refused: Option<(u64, Instant)>,
    /// Refused messages that were logged.
    logged: BTreeSet<Tid>,
}

impl<'a> SourceConsumer<'a> {
    fn new(broker: &'a dyn Messages, queue: QueueName, source: String) -> Self {
        Self {
            broker,
            queue,
            source,
            after: 0,
            refused: None,
            logged: BTreeSet::new(),
        }
    }

    /// Handles the next messages. After an error no message is skipped.
    async fn step(&mut self) -> Result<()> {
        if let Some((first, _)) = self.refused.take_if(|(_, at)| *at <= Instant::now()) {
            self.after = first - 1;
        }
        let wait = self
            .refused
            .map_or(WAIT, |(_, at)| at.duration_since(Instant::now()));
        let peek = PeekRequest {
            queue: self.queue.clone(),
            after: self.after,
            max: BATCH,
            wait,
        };
        let messages = self.broker.peek(peek).await?;
        let Some(last) = messages.last().map(|message| message.id.as_u64()) else {
            return Ok(());
        };
        let known = DesiredStates::read(self.broker).await?;
        if known.subscribers(&self.source).next().is_none() {
            self.after = last;
            return Ok(());
        }
        match self
            .apply(&messages, self.event_tasks(&known, &messages), Vec::new())
            .await
        {
            Ok(true) => {
                messages
                    .iter()
                    .for_each(|message| _ = self.logged.remove(&message.id));
                return Ok(());
            }
            // Another manager handles the same messages, or one of them is refused. Handle each
            // alone, so that a refused one does not block the others.
            Ok(false) => {}
            Err(error) if error.is_retryable() => return Err(error),
            Err(_) => {}
        }
        let (mut left, mut failed, portion) = (None, 0, messages.len());
        for message in messages {
            let id = message.id;
            match self.handle_one(&known, message).await {
                Ok(()) => _ = self.logged.remove(&id),
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => {
                    left = left.or(Some(id.as_u64()));
                    failed += 1;
                    if self.logged.insert(id) {
                        let source = &self.source;
                        tracing::error!(source, %id, %error, "a message cannot be turned into a task: retrying later");
                    }
                }
            }
        }
        if let Some(first) = left {
            self.after = last;
            // Keep earlier refused messages too. Retry them only after the end is reached: there
            // may be more.
            let first = self.refused.map_or(first, |(before, _)| before);
            self.refused = Some((first, Instant::now() + REFUSED_PAUSE));
        }
        if failed == portion {
            // All failed, so the broker may be at fault.
            sleep(ERROR_PAUSE).await;
        }
        Ok(())
    }

    /// Applies a transaction. Returns `false` if another manager was faster.
    async fn apply(
        &self,
        messages: &[Message],
        tasks: Vec<NewTask>,
        new_messages: Vec<NewMessage>,
    ) -> Result<bool> {
        let transaction = MessageTransaction {
            queue: self.queue.clone(),
            messages: messages.to_vec(),
            tasks,
            new_messages,
        };
        Ok(self.broker.apply_transaction(transaction).await?.is_some())
    }

    /// Turns a message into tasks of those workers that accept it, and adds it to the dead queues
    /// of the others.
    async fn handle_one(&self, known: &DesiredStates, message: Message) -> Result<()> {
        let messages = [message];
        let refused = match self
            .apply(&messages, self.event_tasks(known, &messages), Vec::new())
            .await
        {
            Err(Error::Invalid(refused)) => refused,
            other => return other.map(drop),
        };
        let [message] = &messages;
        let (mut tasks, mut new_messages, mut dead) = (Vec::new(), Vec::new(), Vec::new());
        for (state, event) in known.subscribers(&self.source) {
            let task = self.event_task(event, message);
            let Err(error) = task.validate() else {
                tasks.push(task);
                continue;
            };
            match dead_queue(&state.slug) {
                // A dead queue that is a source itself would loop without end.
                Some(to) if to != self.queue => new_messages.push(NewMessage {
                    queue: to,
                    body: message.body.clone(),
                }),
                _ => return Err(refused.into()),
            }
            dead.push((&state.slug, error));
        }
        if dead.is_empty() {
            return Err(refused.into());
        }
        if self.apply(&messages, tasks, new_messages).await? {
            for (slug, error) in dead {
                let (source, id) = (&self.source, message.id);
                tracing::error!(source, %id, slug, %error, "a message cannot be a task, and is in {slug}.dead");
            }
        }
        Ok(())
    }

    /// The tasks for messages.
    fn event_tasks(&self, known: &DesiredStates, messages: &[Message]) -> Vec<NewTask> {
        let tasks_for = |message| {
            known
                .subscribers(&self.source)
                .map(move |(_, event)| self.event_task(event, message))
        };
        messages.iter().flat_map(tasks_for).collect()
    }

    fn event_task(&self, event: &TaskSpec, message: &Message) -> NewTask {
        NewTask::new(with_message(
            event.clone(),
            &self.source,
            &message.id.to_string(),
            &message.body,
        ))
    }
}

/// The queue for messages that are no valid tasks of a worker.
fn dead_queue(slug: &str) -> Option<QueueName> {
    format!("{slug}.dead").parse().ok()
}

#[cfg(test)]
mod tests;
