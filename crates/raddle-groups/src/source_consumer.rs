//! From messages to tasks: every message of a source becomes one task for each worker that has it as a source, and is gone, in one step of the
//! broker. So nothing is lost and nothing doubled, however many managers do this, and whenever one is killed.
//!
//! The entries of a Redis stream that other programs write to are such messages too: a source `stream:NAME` is the queue of this name, and
//! [`transfer_stream`] moves the entries there.
//!
//! Messages are looked at before it is looked who wants them: whoever was made known before a message was written has it.
//!
//! What goes wrong is in the way of nothing else. A message that cannot be the task of a worker, because it is too large or because what the
//! worker has said of itself is refused, goes to that worker's queue of such messages, `<slug>.dead`, and the other workers have it as a task; that is one
//! step too. One that the broker does not convert for another reason stays where it is, and is tried again; those behind it go on meanwhile.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use raddle_broker::{
    Broker, Error, Message, MessageTransaction, Messages, NewMessage, NewTask, PeekRequest, Result,
};
use raddle_broker_connect::{BrokerUrl, open_stream};
use raddle_model::{QueueName, TaskSpec, Tid};
use tokio::time::{Instant, sleep};

use super::{desired_state::DesiredStates, process::with_message};

/// How many messages are converted in one step: others wait for the broker meanwhile.
const PORTION: u32 = 64;
const WAIT: Duration = Duration::from_secs(3600);
/// After an error of the broker, before the next try.
const ERROR_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 500 });
/// Before a message that the broker did not convert is tried again, while those behind it go on.
const LEFT_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 5000 });

/// Converts the messages of a source, for ever. A step that is under way when this is dropped is taken or not.
pub(super) async fn pump(broker: Arc<dyn Broker>, source: String) {
    let Ok(queue) = source.parse::<QueueName>() else {
        return;
    };
    let mut pump = SourceConsumer::new(&*broker, queue, source.clone());
    let mut logged = None;
    loop {
        let turn = pump.turn().await;
        pause_after_error(&source, turn, &mut logged).await;
    }
}

/// The name of the stream whose entries a source is made of, if it is made of such.
pub(super) fn stream_of(source: &str) -> Option<&str> {
    source.strip_prefix("stream:")
}

/// Moves the entries of a stream to the queue of its source, for ever. What is read and not moved when this is dropped is left to the next that does so.
pub(super) async fn transfer_stream(url: BrokerUrl, source: String) {
    let (Some(stream), Ok(queue)) = (stream_of(&source), source.parse::<QueueName>()) else {
        return;
    };
    let (mut opened, mut logged) = (None, None);
    loop {
        let turn = match &mut opened {
            None => open_stream(&url, stream, queue.clone())
                .await
                .map(|stream| opened = Some(stream)),
            Some(stream) => stream.transfer().await.map(drop),
        };
        pause_after_error(&source, turn, &mut logged).await;
    }
}

/// Logs an error once, and not with every try, and pauses before the next.
async fn pause_after_error(source: &str, turn: Result<()>, logged: &mut Option<String>) {
    let Err(error) = turn else {
        *logged = None;
        return;
    };
    let words = error.to_string();
    if logged.as_ref() != Some(&words) {
        tracing::error!(source, %error, "messages cannot be made tasks yet");
    }
    *logged = Some(words);
    sleep(ERROR_PAUSE).await;
}

/// One source, and how far it was looked at.
struct SourceConsumer<'a> {
    broker: &'a dyn Messages,
    queue: QueueName,
    source: String,
    /// Those up to here are seen to. What nobody wants any more is passed over.
    after: u64,
    /// Some of those were left, from this one on, and are tried again then.
    left: Option<(u64, Instant)>,
    /// Those that were left, and are in the log.
    told: BTreeSet<Tid>,
}

impl<'a> SourceConsumer<'a> {
    fn new(broker: &'a dyn Messages, queue: QueueName, source: String) -> Self {
        Self {
            broker,
            queue,
            source,
            after: 0,
            left: None,
            told: BTreeSet::new(),
        }
    }

    /// Sees to the next messages. After an error nothing is passed over: what was not converted is there to be seen again.
    async fn turn(&mut self) -> Result<()> {
        if let Some((first, _)) = self.left.take_if(|(_, at)| *at <= Instant::now()) {
            self.after = first - 1;
        }
        let wait = self
            .left
            .map_or(WAIT, |(_, at)| at.duration_since(Instant::now()));
        let peek = PeekRequest {
            queue: self.queue.clone(),
            after: self.after,
            max: PORTION,
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
                    .for_each(|message| _ = self.told.remove(&message.id));
                return Ok(());
            }
            // Others convert them as well, or one of them cannot be converted: it is not to be in the way of the rest.
            Ok(false) => {}
            Err(error) if error.is_retryable() => return Err(error),
            Err(_) => {}
        }
        let (mut left, mut failed, portion) = (None, 0, messages.len());
        for message in messages {
            let id = message.id;
            match self.convert_one(&known, message).await {
                Ok(()) => _ = self.told.remove(&id),
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => {
                    left = left.or(Some(id.as_u64()));
                    failed += 1;
                    if self.told.insert(id) {
                        let source = &self.source;
                        tracing::error!(source, %id, %error, "a message is not converted, and is left for later");
                    }
                }
            }
        }
        if let Some(first) = left {
            self.after = last;
            // Together with those that were left before. It is not gone back to them before the end is reached: others may be behind.
            let first = self.left.map_or(first, |(before, _)| before);
            self.left = Some((first, Instant::now() + LEFT_PAUSE));
        }
        if failed == portion {
            // It may not be for them.
            sleep(ERROR_PAUSE).await;
        }
        Ok(())
    }

    /// Whether this was the one to convert them.
    async fn convert(
        &self,
        messages: &[Message],
        tasks: Vec<NewTask>,
        new_messages: Vec<NewMessage>,
    ) -> Result<bool> {
        let conversion = MessageTransaction {
            queue: self.queue.clone(),
            messages: messages.to_vec(),
            tasks,
            new_messages,
        };
        Ok(self.broker.apply_transaction(conversion).await?.is_some())
    }

    /// Converts a message for those whose task it can be, and puts it into the queues of the others.
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
        for (standing, event) in known.subscribers(&self.source) {
            let task = self.event(event, message);
            let Err(error) = task.validate() else {
                tasks.push(task);
                continue;
            };
            match dead_queue(&standing.slug) {
                // What was dead already, and is a source now, would come round for ever.
                Some(to) if to != self.queue => new_messages.push(NewMessage {
                    queue: to,
                    body: message.body.clone(),
                }),
                _ => return Err(refused.into()),
            }
            dead.push((&standing.slug, error));
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

    /// The tasks that messages are.
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

/// Where a worker has the messages that cannot be its tasks.
fn dead_queue(slug: &str) -> Option<QueueName> {
    format!("{slug}.dead").parse().ok()
}

#[cfg(test)]
mod tests;
