//! What is wanted of each worker, kept in the broker: its sources, whether it is on, and how many processes there are of it.
//!
//! It is one message for each worker in the queue `raddle.groups`, so that everybody sees it at once, and it outlives managers. Every change
//! takes the place of the message that it was decided from, in one step: if that is gone, it is decided anew. Where there are two of one worker, because two
//! have made it known for the first time at the same time, the last one counts, and the next change takes the place of both. Sources stay there when a manager goes: what comes meanwhile becomes tasks that wait for the next one, as with a consumer group.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use raddle_broker::{
    Broker, Message, MessageTransaction, Messages, NewMessage, PeekRequest, Result,
};
use raddle_model::{QueueName, TaskSpec, Tid, schedule::is_slug, worker::WorkerStatus};
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::sleep};

use super::{GroupWorker, ManagerError, Process, view::keepers};

/// The queue.
const GROUPS: &str = "raddle.groups";
/// How many workers are looked at, at most.
const MOST: u32 = 100_000;
/// How long one wait lasts before it is begun again. Nothing depends on it.
const WAIT: Duration = Duration::from_secs(3600);
/// After an error of the broker, before the next look.
const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// What is wanted of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DesiredState {
    /// Its name, and that of its queue.
    pub slug: String,
    /// The process that hosts it.
    pub process: String,
    /// The file, or the program, that has it.
    #[serde(default)]
    pub file: Option<String>,
    /// The queues whose every message is an event for it.
    #[serde(default)]
    pub sources: Vec<String>,
    /// The task that an event is, without its message.
    #[serde(default)]
    pub event: Option<Box<TaskSpec>>,
    /// Whether it is on.
    pub on: bool,
    /// How many processes there are of it, as its file says.
    pub replicas: u32,
    /// How many there are instead, if somebody said so at run time.
    #[serde(default)]
    pub scaled: Option<u32>,
    /// Whether there can be more than one.
    pub scales: bool,
    /// Whether it has a trigger.
    #[serde(default)]
    pub triggered: bool,
}

/// All workers that the broker knows of, and the messages that say so.
#[derive(Clone, Debug, Default)]
pub(super) struct DesiredStates {
    of: BTreeMap<String, DesiredState>,
    messages: Vec<(String, Message)>,
    last: u64,
    /// How often the broker was away, and is there again.
    pub(super) returns: u64,
}

fn queue() -> QueueName {
    GROUPS.parse().expect("it is the name of a queue")
}

impl DesiredState {
    /// As a file has it.
    pub(super) fn declared(process: &Process, worker: &GroupWorker, file: Option<&str>) -> Self {
        Self {
            slug: worker.slug.clone(),
            process: process.name.clone(),
            file: file.map(str::to_owned),
            sources: worker.sources.clone(),
            event: worker.event().map(Box::new),
            on: true,
            replicas: process.replicas,
            scaled: None,
            scales: process.workers.len() == 1 && worker.trigger.is_none(),
            triggered: worker.trigger.is_some(),
        }
    }

    /// How many processes there are to be of it.
    pub fn wanted(&self) -> u32 {
        self.scaled.unwrap_or(self.replicas)
    }

    /// Whether another is of another file. One file may have several managers, be at another path on another machine, and be newer than what its other
    /// managers have read.
    fn is_of_another_file(&self, other: &Self) -> bool {
        let is_the_same = |other: &Self| {
            let of = |of: &Self| {
                (
                    of.sources.clone(),
                    of.event.clone(),
                    of.replicas,
                    of.triggered,
                )
            };
            of(self) == of(other)
        };
        self.process != other.process || (self.file != other.file && !is_the_same(other))
    }

    /// The same, with what people have said of another.
    fn heeding(self, before: &Self) -> Self {
        Self {
            on: before.on,
            scaled: before.scaled.filter(|_| self.scales),
            ..self
        }
    }
}

impl DesiredStates {
    pub(super) async fn read(broker: &dyn Messages) -> Result<Self> {
        let messages = broker
            .peek(PeekRequest {
                queue: queue(),
                after: 0,
                max: MOST,
                wait: Duration::ZERO,
            })
            .await?;
        Ok(Self::fold(messages))
    }

    fn fold(messages: Vec<Message>) -> Self {
        let mut all = Self::default();
        for message in messages {
            all.last = all.last.max(message.id.as_u64());
            match serde_json::from_str::<DesiredState>(&message.body) {
                Ok(standing) if !is_slug(&standing.slug) => {
                    tracing::debug!(id = %message.id, slug = standing.slug, "what {GROUPS} says is of no worker");
                }
                Ok(standing) => {
                    all.messages.push((standing.slug.clone(), message));
                    all.of.insert(standing.slug.clone(), standing);
                }
                Err(error) => {
                    tracing::debug!(id = %message.id, %error, "what {GROUPS} says is not understood here")
                }
            }
        }
        all
    }

    pub(super) fn get(&self, slug: &str) -> Option<&DesiredState> {
        self.of.get(slug)
    }

    /// Who has events from a queue.
    pub(super) fn subscribers(
        &self,
        source: &str,
    ) -> impl Iterator<Item = (&DesiredState, &TaskSpec)> {
        let of_source =
            move |standing: &&DesiredState| standing.sources.iter().any(|name| name == source);
        self.of
            .values()
            .filter(of_source)
            .filter_map(|standing| Some((standing, standing.event.as_deref()?)))
    }

    /// Has this said of a worker, or nothing, instead of what was read of it. Returns whether that was done: it is not if somebody has said something else
    /// meanwhile.
    async fn replace(
        &self,
        broker: &dyn Messages,
        slug: &str,
        standing: Option<&DesiredState>,
    ) -> Result<bool> {
        let of_it = |(of, message): &(String, Message)| (of == slug).then(|| message.clone());
        let letter = |standing: &DesiredState| NewMessage {
            queue: queue(),
            body: serde_json::to_string(standing).expect("it has only string keys"),
        };
        let conversion = MessageTransaction {
            queue: queue(),
            messages: self.messages.iter().filter_map(of_it).collect(),
            tasks: Vec::new(),
            new_messages: standing.map(letter).into_iter().collect(),
        };
        Ok(broker.apply_transaction(conversion).await?.is_some())
    }

    /// Decides from what is wanted of a worker what is wanted from now on, as often as it takes: whoever says something at the same time is not
    /// talked over. Returns both.
    async fn update(
        &mut self,
        broker: &dyn Messages,
        slug: &str,
        decide: impl Fn(Option<&DesiredState>) -> Option<DesiredState>,
    ) -> Result<(Option<DesiredState>, Option<DesiredState>)> {
        loop {
            let before = self.get(slug);
            let after = decide(before);
            if after.as_ref() == before || self.replace(broker, slug, after.as_ref()).await? {
                return Ok((before.cloned(), after));
            }
            *self = Self::read(broker).await?;
        }
    }
}

/// Makes known what a file says of its workers. What people have said at run time stays. A slug that a manager of another file has is refused.
///
/// A manager declares before it is registered, and again after that. Of two that declare one slug at the same time, the one that writes last finds the other
/// registered at its second declaration, or is found.
pub(super) async fn declare(
    broker: &dyn Broker,
    processes: &[Process],
    file: Option<&str>,
    manager: Option<Tid>,
) -> Result<(), ManagerError> {
    let mut known = DesiredStates::read(broker).await?;
    for (process, worker) in workers_of(processes) {
        let declared = DesiredState::declared(process, worker, file);
        loop {
            refuse_taken(broker, &known, &declared, manager).await?;
            let before = known.get(&worker.slug);
            let after = before.map_or_else(
                || declared.clone(),
                |before| declared.clone().heeding(before),
            );
            if before == Some(&after) || known.replace(broker, &worker.slug, Some(&after)).await? {
                break;
            }
            known = DesiredStates::read(broker).await?;
        }
    }
    Ok(())
}

/// Refuses slugs that a manager of another file has. Nothing is written.
pub(super) async fn check_slugs(
    broker: &dyn Broker,
    processes: &[Process],
    file: Option<&str>,
    manager: Option<Tid>,
) -> Result<(), ManagerError> {
    let known = DesiredStates::read(broker).await?;
    for (process, worker) in workers_of(processes) {
        refuse_taken(
            broker,
            &known,
            &DesiredState::declared(process, worker, file),
            manager,
        )
        .await?;
    }
    Ok(())
}

/// Refuses a slug that a manager of another file has. `manager` is the one that declares it. The registry is read after what is `known`: a manager that
/// registers later declares once more, and finds what this one has written.
async fn refuse_taken(
    broker: &dyn Broker,
    known: &DesiredStates,
    declared: &DesiredState,
    manager: Option<Tid>,
) -> Result<(), ManagerError> {
    let slug = &declared.slug;
    let Some(before) = known
        .get(slug)
        .filter(|before| declared.is_of_another_file(before))
    else {
        return Ok(());
    };
    let mut keepers = keepers(&broker.workers().await?, slug).into_iter();
    match keepers
        .find(|keeper| Some(keeper.tid) != manager && keeper.status != WorkerStatus::Draining)
    {
        None => Ok(()),
        Some(keeper) => Err(ManagerError::SlugTaken {
            slug: slug.clone(),
            process: before.process.clone(),
            file: before.file.clone().unwrap_or_else(|| "another file".into()),
            manager: keeper.tid,
        }),
    }
}

fn workers_of(processes: &[Process]) -> impl Iterator<Item = (&Process, &GroupWorker)> {
    processes
        .iter()
        .flat_map(|process| process.workers.iter().map(move |worker| (process, worker)))
}

/// All workers that the broker knows of, by their slugs.
pub async fn standings(broker: &dyn Broker) -> Result<Vec<DesiredState>> {
    Ok(DesiredStates::read(broker)
        .await?
        .of
        .into_values()
        .collect())
}

/// Changes what is wanted of a worker. Nothing, if there is none of this name.
pub(super) async fn change(
    broker: &dyn Messages,
    slug: &str,
    change: impl Fn(&mut DesiredState),
) -> Result<Option<DesiredState>> {
    let changed = |before: Option<&DesiredState>| {
        let mut standing = before?.clone();
        change(&mut standing);
        Some(standing)
    };
    Ok(DesiredStates::read(broker)
        .await?
        .update(broker, slug, changed)
        .await?
        .1)
}

/// Removes a worker: nothing is an event for it any more. Its tasks stay. Returns what was wanted of it.
pub(super) async fn remove(broker: &dyn Messages, slug: &str) -> Result<Option<DesiredState>> {
    Ok(DesiredStates::read(broker)
        .await?
        .update(broker, slug, |_| None)
        .await?
        .0)
}

/// Tells of every change, for ever.
pub(super) async fn follow(broker: Arc<dyn Broker>, tell: watch::Sender<DesiredStates>) {
    let (mut after, mut returns, mut is_away) = (0, 0, false);
    loop {
        let found = async {
            let mut known = DesiredStates::read(&*broker).await?;
            returns += u64::from(std::mem::take(&mut is_away));
            known.returns = returns;
            after = known.last.max(after);
            let _ = tell.send(known);
            broker
                .peek(PeekRequest {
                    queue: queue(),
                    after,
                    max: 1,
                    wait: WAIT,
                })
                .await
        };
        if let Err(error) = found.await {
            tracing::error!(%error, "what is wanted of workers cannot be read");
            is_away = true;
            sleep(ERROR_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use raddle_broker_sqlite::Sqlite;
    use raddle_model::Tid;
    use tokio::{runtime::Handle, task::block_in_place};

    use super::*;

    type Said<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Option<DesiredState>>> + 'a>>;

    fn message(id: u64, standing: &DesiredState) -> Message {
        let id = Tid::from_u64(1_800_000_000_000_000_000 + id * 4096).unwrap();
        Message {
            id,
            body: serde_json::to_string(standing).unwrap(),
        }
    }

    #[test]
    fn the_last_word_counts_and_what_is_not_understood_is_passed_over() {
        let process =
            Process::new("p").worker(GroupWorker::command("mail", ["true"]).source("orders"));
        let on = DesiredState::declared(&process, &process.workers[0], None);
        let off = DesiredState {
            on: false,
            scaled: Some(4),
            ..on.clone()
        };
        let noise = Message {
            body: "hello".into(),
            ..message(3, &on)
        };
        let all = DesiredStates::fold(vec![message(1, &on), message(2, &off), noise]);
        assert_eq!((all.get("mail"), all.messages.len()), (Some(&off), 2));
        assert_eq!(all.subscribers("orders").count(), 1);
        assert_eq!(all.subscribers("refunds").count(), 0);
        let again = on.clone().heeding(&off);
        assert_eq!(
            (again.on, again.wanted()),
            (false, 4),
            "a restart does not undo what people have said"
        );
    }

    #[test]
    fn one_file_may_be_at_two_paths_or_change_and_two_files_are_told_apart() {
        let standing = |process: &str, command: &str, file: &str| {
            let process = Process::new(process).worker(GroupWorker::command("mail", [command]));
            DesiredState::declared(&process, &process.workers[0], Some(file))
        };
        let one = standing("post", "send", "/a.toml");
        for same in [
            standing("post", "send", "/b.toml"),
            standing("post", "send-2", "/a.toml"),
        ] {
            assert!(!one.is_of_another_file(&same), "{same:?}");
        }
        for other in [
            standing("post", "sort", "/b.toml"),
            standing("rest", "send", "/a.toml"),
        ] {
            assert!(one.is_of_another_file(&other), "{other:?}");
        }
    }

    /// Between the look of one and its write, another says something else.
    #[tokio::test(flavor = "multi_thread")]
    async fn nobody_is_talked_over() {
        let broker = Sqlite::in_memory().await.unwrap();
        let process = Process::new("p").worker(GroupWorker::command("mail", ["true"]));
        declare(&broker, &[process], None, None).await.unwrap();
        let at_once = |said: Said<'_>| block_in_place(|| Handle::current().block_on(said)).unwrap();
        let unsaid = Cell::new(true);
        let off = change(&broker, "mail", |standing| {
            if unsaid.take() {
                at_once(Box::pin(change(&broker, "mail", |standing| {
                    standing.scaled = Some(3)
                })));
            }
            standing.on = false;
        });
        let off = off.await.unwrap().expect("it is known");
        assert_eq!((off.on, off.wanted()), (false, 3));
        assert_eq!(standings(&broker).await.unwrap(), [off]);
        assert_eq!(
            broker
                .peek(PeekRequest {
                    queue: queue(),
                    after: 0,
                    max: 9,
                    wait: Duration::ZERO
                })
                .await
                .unwrap()
                .len(),
            1
        );
        unsaid.set(true);
        let on = change(&broker, "mail", |standing| {
            if unsaid.take() {
                at_once(Box::pin(remove(&broker, "mail")));
            }
            standing.on = true;
        });
        assert_eq!(on.await.unwrap(), None, "it is not there again");
        assert_eq!(standings(&broker).await.unwrap(), []);
    }
}
