//! From messages to tasks: every message of a source becomes one task for each worker that has it as a source, and is gone, in one step of the
//! broker. So nothing is lost and nothing doubled, however many managers do this, and whenever one is killed.
//!
//! Messages are looked at before it is looked who wants them: whoever was made known before a message was written has it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use raddle_broker::{Broker, Conversion, Message, Peek, Result, Submit};
use raddle_core::QueueName;
use tokio::{task::JoinHandle, time::sleep};

use super::{process::with_message, standing::Standings};

/// How many messages are converted in one step: others wait for the broker meanwhile.
const PORTION: u32 = 64;
const WAIT: Duration = Duration::from_secs(3600);
/// After an error of the broker, before the next try.
const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// Pumps for some sources. They end when this is dropped.
#[derive(Default)]
pub(super) struct Pumps(BTreeMap<String, JoinHandle<()>>);

impl Pumps {
    /// Has one for each of these, and no other.
    pub(super) fn keep(&mut self, broker: &Arc<dyn Broker>, sources: impl Iterator<Item = String>) {
        let mut before = std::mem::take(&mut self.0);
        for source in sources {
            let start = || tokio::spawn(pump(Arc::clone(broker), source.clone()));
            let running = before.remove(&source).unwrap_or_else(start);
            self.0.insert(source, running);
        }
        // A step that is under way is taken or not, whoever waits for it.
        before.into_values().for_each(|pump| pump.abort());
    }
}

impl Drop for Pumps {
    fn drop(&mut self) {
        self.0.values().for_each(JoinHandle::abort);
    }
}

async fn pump(broker: Arc<dyn Broker>, source: String) {
    let Ok(queue) = source.parse::<QueueName>() else { return };
    // Those that nobody wants any more are passed over.
    let mut after = 0;
    loop {
        match turn(&*broker, &queue, &source, after).await {
            Ok(passed) => after = passed,
            Err(error) => {
                tracing::error!(source, %error, "messages cannot be made tasks yet");
                sleep(ERROR_PAUSE).await;
            }
        }
    }
}

async fn turn(broker: &dyn Broker, queue: &QueueName, source: &str, after: u64) -> Result<u64> {
    let messages = broker.look(Peek { queue: queue.clone(), after, max: PORTION, wait: WAIT }).await?;
    let Some(last) = messages.last() else { return Ok(after) };
    let passed = last.id.as_u64();
    let known = Standings::read(broker).await?;
    if known.subscribers(source).next().is_none() {
        return Ok(passed);
    }
    let tasks = |messages: &[Message]| -> Vec<Submit> {
        messages.iter().flat_map(|message| events(&known, source, message)).collect()
    };
    let conversion = |messages: Vec<Message>| {
        let tasks = tasks(&messages);
        Conversion { queue: queue.clone(), messages, tasks }
    };
    match broker.convert(conversion(messages.clone())).await {
        Ok(Some(_)) => Ok(after),
        // Others convert them as well. One by one, so that what one of them does is not in the way of the rest.
        Ok(None) => {
            for message in messages {
                broker.convert(conversion(vec![message])).await?;
            }
            Ok(after)
        }
        // One of them cannot be a task: too large, perhaps.
        Err(error) if !error.is_retryable() => {
            for message in messages {
                let id = message.id;
                if let Err(error) = broker.convert(conversion(vec![message])).await {
                    if error.is_retryable() {
                        return Err(error);
                    }
                    tracing::error!(source, message = %id, %error, "a message cannot be a task, and is left where it is");
                }
            }
            Ok(passed)
        }
        Err(error) => Err(error),
    }
}

/// The tasks that a message is.
fn events(known: &Standings, source: &str, message: &Message) -> Vec<Submit> {
    let id = message.id.to_string();
    let wanted = known.subscribers(source);
    wanted.map(|(_, event)| Submit::new(with_message(event.clone(), source, &id, &message.body))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use raddle_broker::{TaskFilter, memory::Memory};

    use super::{super::standing::declare, *};
    use crate::group::{Process, Work};

    #[tokio::test]
    async fn each_message_is_a_task_for_each_who_wants_it_whoever_pumps() {
        let broker: Arc<dyn Broker> = Arc::new(Memory::new());
        let of = |slug: &str| Process::new(slug).worker(Work::command(slug, ["cat"]).source("orders"));
        declare(&*broker, &[of("mail"), of("stock")]).await.unwrap();
        let source: QueueName = "orders".parse().unwrap();
        let mut pumps: Vec<Pumps> = (0..5).map(|_| Pumps::default()).collect();
        for pump in &mut pumps {
            pump.keep(&broker, ["orders".to_owned()].into_iter());
        }
        for number in 0..300 {
            broker.put(&source, vec![number.to_string()]).await.unwrap();
        }
        let find = || async { broker.tasks(TaskFilter::default()).await.unwrap() };
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while find().await.len() < 600 && tokio::time::Instant::now() < deadline {
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(50)).await;
        let tasks = find().await;
        let distinct: BTreeSet<(String, String)> =
            tasks.iter().map(|task| (task.spec.queue.clone(), task.spec.stdin.clone().unwrap())).collect();
        assert_eq!((tasks.len(), distinct.len()), (600, 600));
        assert!(broker.depths().await.unwrap().iter().all(|depth| depth.queue != source));
    }
}
