//! Source consumer: converts every message of a source into one task for each worker that has the
//! source, and removes the message, in one transaction of the broker. So no message is lost or
//! converted twice, however many managers do this, and whenever one is killed.
//!
//! The entries of a Redis stream that other programs write to count as messages too: a source
//! `stream:NAME` is the queue of this name, and [`transfer_stream`] moves the entries there.
//!
//! Messages are read before the subscribers: a worker that was declared before a message was
//! written gets the message.
//!
//! A failed message blocks no other. A message that cannot be a task of a worker, because the task
//! is too large or the worker's `event` is invalid, goes to the worker's dead-message queue,
//! `<slug>.dead`, and the other workers get it as a task, in the same transaction. A message that
//! the broker does not convert for another reason stays in the queue and is retried; the messages
//! behind it are converted meanwhile.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use raddle_broker::{
    Broker, Error, Message, MessageTransaction, Messages, NewMessage, NewTask, PeekRequest, Result,
};
use raddle_broker_connect::{BrokerUrl, open_stream};
use raddle_model::{QueueName, TaskSpec, Tid};
use tokio::time::{Instant, sleep};

use super::{desired_state::DesiredStates, process::with_message};

/// How many messages to convert in one transaction. Other calls wait for the broker meanwhile.
const BATCH: u32 = 64;
const WAIT: Duration = Duration::from_secs(3600);
/// Pause after a broker error, before the next try.
const ERROR_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 500 });
/// Pause before a message that the broker did not convert is retried. The messages behind it are
/// converted meanwhile.
const RETRY_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 5000 });

/// Converts the messages of a source, for ever. If this is dropped during a transaction, the
/// transaction is either committed or not.
pub(super) async fn consume_source(broker: Arc<dyn Broker>, source: String) {
    let Ok(queue) = source.parse::<QueueName>() else {
        return;
    };
    let mut consumer = SourceConsumer::new(&*broker, queue, source.clone());
    let mut logged = None;
    loop {
        let result = consumer.consume_batch().await;
        pause_after_error(&source, result, &mut logged).await;
    }
}

/// The name of the Redis stream of a source, if the source is a stream.
pub(super) fn stream_of(source: &str) -> Option<&str> {
    source.strip_prefix("stream:")
}

/// Moves the entries of a stream to the queue of its source, for ever. Entries that were read and
/// not moved when this is dropped are left to the next consumer.
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

/// Logs an error, unless the last try failed with the same one, and pauses before the next try.
async fn pause_after_error(source: &str, result: Result<()>, logged: &mut Option<String>) {
    let Err(error) = result else {
        *logged = None;
        return;
    };
    let text = error.to_string();
    if logged.as_ref() != Some(&text) {
        tracing::error!(source, %error, "messages cannot be converted to tasks yet");
    }
    *logged = Some(text);
    sleep(ERROR_PAUSE).await;
}

/// A source, and the position in it.
struct SourceConsumer<'a> {
    broker: &'a dyn Messages,
    queue: QueueName,
    source: String,
    /// The last message that was handled. Messages without a subscriber are skipped.
    after: u64,
    /// The first of the handled messages that were not converted, and when to retry.
    retry: Option<(u64, Instant)>,
    /// Messages whose failure is in the log already.
    logged: BTreeSet<Tid>,
}

impl<'a> SourceConsumer<'a> {
    fn new(broker: &'a dyn Messages, queue: QueueName, source: String) -> Self {
        Self {
            broker,
            queue,
            source,
            after: 0,
            retry: None,
            logged: BTreeSet::new(),
        }
    }

    /// Handles the next messages. After an error the position does not move, so no message is
    /// skipped.
    async fn consume_batch(&mut self) -> Result<()> {
        if let Some((first, _)) = self.retry.take_if(|(_, at)| *at <= Instant::now()) {
            self.after = first - 1;
        }
        let wait = self
            .retry
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
            .convert(&messages, self.events(&known, &messages), Vec::new())
            .await
        {
            Ok(true) => {
                messages
                    .iter()
                    .for_each(|message| _ = self.logged.remove(&message.id));
                return Ok(());
            }
            // Another manager converts them as well, or one of them cannot be converted: try each
            // alone, so that it does not block the rest.
            Ok(false) => {}
            Err(error) if error.is_retryable() => return Err(error),
            Err(_) => {}
        }
        let (mut first_failed, mut failed, batch_size) = (None, 0, messages.len());
        for message in messages {
            let id = message.id;
            match self.convert_one(&known, message).await {
                Ok(()) => _ = self.logged.remove(&id),
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => {
                    first_failed = first_failed.or(Some(id.as_u64()));
                    failed += 1;
                    if self.logged.insert(id) {
                        let source = &self.source;
                        tracing::error!(source, %id, %error, "a message cannot be converted now, and is retried later");
                    }
                }
            }
        }
        if let Some(first) = first_failed {
            self.after = last;
            // Keep the earliest failed message: a retry starts there. It waits for the end of the
            // queue, so that the messages behind are converted first.
            let first = self.retry.map_or(first, |(before, _)| before);
            self.retry = Some((first, Instant::now() + RETRY_PAUSE));
        }
        if failed == batch_size {
            // All of them failed, so the cause may be the broker and not the messages.
            sleep(ERROR_PAUSE).await;
        }
        Ok(())
    }

    /// Returns whether this call has converted the messages; `false` if another consumer has.
    async fn convert(
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

    /// Converts a message for the workers that accept it as a task, and moves it to the
    /// dead-message queues of the others.
    async fn convert_one(&self, known: &DesiredStates, message: Message) -> Result<()> {
        let messages = [message];
        let refused = match self
            .convert(&messages, self.events(known, &messages), Vec::new())
            .await
        {
            Err(Error::Invalid(refused)) => refused,
            other => return other.map(drop),
        };
        let [message] = &messages;
        let (mut tasks, mut new_messages, mut dead) = (Vec::new(), Vec::new(), Vec::new());
        for (state, event) in known.subscribers(&self.source) {
            let task = self.event(event, message);
            let Err(error) = task.validate() else {
                tasks.push(task);
                continue;
            };
            match dead_queue(&state.slug) {
                // A source that is the worker's own dead-message queue would receive the message
                // again, for ever.
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
        if self.convert(&messages, tasks, new_messages).await? {
            for (slug, error) in dead {
                let (source, id) = (&self.source, message.id);
                tracing::error!(source, %id, slug, %error, "a message cannot be a task, and is in {slug}.dead");
            }
        }
        Ok(())
    }

    /// The tasks to make of messages.
    fn events(&self, known: &DesiredStates, messages: &[Message]) -> Vec<NewTask> {
        let of_one = |message| {
            known
                .subscribers(&self.source)
                .map(move |(_, event)| self.event(event, message))
        };
        messages.iter().flat_map(of_one).collect()
    }

    fn event(&self, event: &TaskSpec, message: &Message) -> NewTask {
        NewTask::new(with_message(
            event.clone(),
            &self.source,
            &message.id.to_string(),
            &message.body,
        ))
    }
}

/// The queue for messages that cannot be tasks of a worker.
fn dead_queue(slug: &str) -> Option<QueueName> {
    format!("{slug}.dead").parse().ok()
}

#[cfg(test)]
mod tests;
