//! The desired state of each worker, stored in the broker: its sources, whether it is on, and how
//! many replicas it has.
//!
//! The queue `raddle.groups` holds one message for each worker, so every manager sees a change at
//! once, and the state outlives managers. Each change replaces, in one transaction, the message
//! that it was decided from; if that message is gone, the change is decided again. When two
//! managers declare a worker for the first time at once, there are two messages: the last one
//! counts, and the next change replaces both. Sources stay when a manager ends: new messages become
//! tasks that wait for the next manager, as with a consumer group.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use raddle_broker::{
    Broker, Message, MessageTransaction, Messages, NewMessage, PeekRequest, Result,
};
use raddle_model::{QueueName, TaskSpec, Tid, schedule::is_slug, worker::WorkerStatus};
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::sleep};

use super::{GroupWorker, ManagerError, Process, view::keepers};

/// The queue that holds the states.
const GROUPS_QUEUE: &str = "raddle.groups";
/// Most messages to read from the queue.
const MAX_MESSAGES: u32 = 100_000;
/// How long one blocking read lasts. It is repeated, so the value has no effect on latency.
const WAIT: Duration = Duration::from_secs(3600);
/// Pause after a broker error, before the next read.
const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// The desired state of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DesiredState {
    /// Its name, and that of its queue.
    pub slug: String,
    /// The process that hosts it.
    pub process: String,
    /// The file, or the program, that declares it.
    #[serde(default)]
    pub file: Option<String>,
    /// The queues whose messages are all events for it.
    #[serde(default)]
    pub sources: Vec<String>,
    /// The task to make of an event, without the message.
    #[serde(default)]
    pub event: Option<Box<TaskSpec>>,
    /// Whether it is on.
    pub on: bool,
    /// How many replicas its file declares.
    pub replicas: u32,
    /// How many replicas to run instead, if that was changed at run time.
    #[serde(default)]
    pub scaled: Option<u32>,
    /// Whether it may have more than one replica.
    pub scales: bool,
    /// Whether it has a trigger.
    #[serde(default)]
    pub triggered: bool,
}

/// The states of all workers that the broker knows, and the messages that hold them.
#[derive(Clone, Debug, Default)]
pub(super) struct DesiredStates {
    by_slug: BTreeMap<String, DesiredState>,
    messages: Vec<(String, Message)>,
    last: u64,
    /// How often the broker came back after an outage.
    pub(super) returns: u64,
}

fn queue() -> QueueName {
    GROUPS_QUEUE.parse().expect("the constant is a queue name")
}

impl DesiredState {
    /// The state that a file declares.
    pub(super) fn from_file(process: &Process, worker: &GroupWorker, file: Option<&str>) -> Self {
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

    /// How many replicas to run.
    pub fn wanted(&self) -> u32 {
        self.scaled.unwrap_or(self.replicas)
    }

    /// Whether `other` comes from another file. One file may have several managers, be at another
    /// path on another machine, and be newer than the version that its other managers have read.
    fn is_of_another_file(&self, other: &Self) -> bool {
        let is_the_same = |other: &Self| {
            let content = |state: &Self| {
                (
                    state.sources.clone(),
                    state.event.clone(),
                    state.replicas,
                    state.triggered,
                )
            };
            content(self) == content(other)
        };
        self.process != other.process || (self.file != other.file && !is_the_same(other))
    }

    /// This state, with the run-time changes (`on`, `scaled`) of an older one.
    fn with_overrides_of(self, before: &Self) -> Self {
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
                max: MAX_MESSAGES,
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
                Ok(state) if !is_slug(&state.slug) => {
                    tracing::debug!(id = %message.id, slug = state.slug, "a message in {GROUPS_QUEUE} has an invalid slug and is ignored");
                }
                Ok(state) => {
                    all.messages.push((state.slug.clone(), message));
                    all.by_slug.insert(state.slug.clone(), state);
                }
                Err(error) => {
                    tracing::debug!(id = %message.id, %error, "a message in {GROUPS_QUEUE} cannot be parsed and is ignored")
                }
            }
        }
        all
    }

    pub(super) fn get(&self, slug: &str) -> Option<&DesiredState> {
        self.by_slug.get(slug)
    }

    /// The workers that have `source` as a source, with the task to make of each event.
    pub(super) fn subscribers(
        &self,
        source: &str,
    ) -> impl Iterator<Item = (&DesiredState, &TaskSpec)> {
        let of_source =
            move |state: &&DesiredState| state.sources.iter().any(|name| name == source);
        self.by_slug
            .values()
            .filter(of_source)
            .filter_map(|state| Some((state, state.event.as_deref()?)))
    }

    /// Replaces the state of a worker that was read, or removes it for `None`. Returns `false`,
    /// without a change, if another process has changed it meanwhile.
    async fn replace(
        &self,
        broker: &dyn Messages,
        slug: &str,
        state: Option<&DesiredState>,
    ) -> Result<bool> {
        let of_slug = |(slug_of_message, message): &(String, Message)| {
            (slug_of_message == slug).then(|| message.clone())
        };
        let to_message = |state: &DesiredState| NewMessage {
            queue: queue(),
            body: serde_json::to_string(state).expect("all map keys are strings"),
        };
        let transaction = MessageTransaction {
            queue: queue(),
            messages: self.messages.iter().filter_map(of_slug).collect(),
            tasks: Vec::new(),
            new_messages: state.map(to_message).into_iter().collect(),
        };
        Ok(broker.apply_transaction(transaction).await?.is_some())
    }

    /// Decides the new state of a worker from its current one, and again after each concurrent
    /// change, so that no change is overwritten. Returns the state before and after.
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

/// Declares the workers of a file. Changes made at run time stay. A slug that a manager of another
/// file keeps is refused.
///
/// A manager declares before it is registered, and again after that. If two managers declare one
/// slug at the same time, the one that writes last either finds the other registered at its second
/// declaration, or is found by it.
pub(super) async fn declare(
    broker: &dyn Broker,
    processes: &[Process],
    file: Option<&str>,
    manager: Option<Tid>,
) -> Result<(), ManagerError> {
    let mut known = DesiredStates::read(broker).await?;
    for (process, worker) in workers_of(processes) {
        let declared = DesiredState::from_file(process, worker, file);
        loop {
            refuse_taken(broker, &known, &declared, manager).await?;
            let before = known.get(&worker.slug);
            let after = before.map_or_else(
                || declared.clone(),
                |before| declared.clone().with_overrides_of(before),
            );
            if before == Some(&after) || known.replace(broker, &worker.slug, Some(&after)).await? {
                break;
            }
            known = DesiredStates::read(broker).await?;
        }
    }
    Ok(())
}

/// Refuses slugs that a manager of another file keeps. Writes nothing.
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
            &DesiredState::from_file(process, worker, file),
            manager,
        )
        .await?;
    }
    Ok(())
}

/// Refuses a slug that a manager of another file keeps. `manager` is the id of the declaring
/// manager. The registry must be read after `known`: a manager that registers later declares once
/// more, and then finds what this one has written.
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

/// The states of all workers that the broker knows, in the order of their slugs.
pub async fn standings(broker: &dyn Broker) -> Result<Vec<DesiredState>> {
    Ok(DesiredStates::read(broker)
        .await?
        .by_slug
        .into_values()
        .collect())
}

/// Changes the desired state of a worker. Returns `None` if there is no such worker.
pub(super) async fn change(
    broker: &dyn Messages,
    slug: &str,
    change: impl Fn(&mut DesiredState),
) -> Result<Option<DesiredState>> {
    let changed = |before: Option<&DesiredState>| {
        let mut state = before?.clone();
        change(&mut state);
        Some(state)
    };
    Ok(DesiredStates::read(broker)
        .await?
        .update(broker, slug, changed)
        .await?
        .1)
}

/// Removes a worker: messages of its sources are no longer events for it. Its tasks stay. Returns
/// its last state.
pub(super) async fn remove(broker: &dyn Messages, slug: &str) -> Result<Option<DesiredState>> {
    Ok(DesiredStates::read(broker)
        .await?
        .update(broker, slug, |_| None)
        .await?
        .0)
}

/// Sends the states with every change, for ever.
pub(super) async fn follow(broker: Arc<dyn Broker>, sender: watch::Sender<DesiredStates>) {
    let (mut after, mut returns, mut is_away) = (0, 0, false);
    loop {
        let found = async {
            let mut known = DesiredStates::read(&*broker).await?;
            returns += u64::from(std::mem::take(&mut is_away));
            known.returns = returns;
            after = known.last.max(after);
            let _ = sender.send(known);
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
            tracing::error!(%error, "the desired state of workers cannot be read");
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

    type Change<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Option<DesiredState>>> + 'a>>;

    fn message(id: u64, state: &DesiredState) -> Message {
        let id = Tid::from_u64(1_800_000_000_000_000_000 + id * 4096).unwrap();
        Message {
            id,
            body: serde_json::to_string(state).unwrap(),
        }
    }

    #[test]
    fn the_last_message_counts_and_invalid_ones_are_ignored() {
        let process =
            Process::new("p").worker(GroupWorker::command("mail", ["true"]).source("orders"));
        let on = DesiredState::from_file(&process, &process.workers[0], None);
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
        let again = on.clone().with_overrides_of(&off);
        assert_eq!(
            (again.on, again.wanted()),
            (false, 4),
            "a restart keeps changes made at run time"
        );
    }

    #[test]
    fn tells_another_file_from_a_moved_or_changed_one() {
        let state = |process: &str, command: &str, file: &str| {
            let process = Process::new(process).worker(GroupWorker::command("mail", [command]));
            DesiredState::from_file(&process, &process.workers[0], Some(file))
        };
        let one = state("post", "send", "/a.toml");
        for same in [
            state("post", "send", "/b.toml"),
            state("post", "send-2", "/a.toml"),
        ] {
            assert!(!one.is_of_another_file(&same), "{same:?}");
        }
        for other in [
            state("post", "sort", "/b.toml"),
            state("rest", "send", "/a.toml"),
        ] {
            assert!(one.is_of_another_file(&other), "{other:?}");
        }
    }

    /// A second change is written between the read and the write of the first.
    #[tokio::test(flavor = "multi_thread")]
    async fn concurrent_changes_are_both_kept() {
        let broker = Sqlite::in_memory().await.unwrap();
        let process = Process::new("p").worker(GroupWorker::command("mail", ["true"]));
        declare(&broker, &[process], None, None).await.unwrap();
        let at_once =
            |change: Change<'_>| block_in_place(|| Handle::current().block_on(change)).unwrap();
        let is_first = Cell::new(true);
        let off = change(&broker, "mail", |state| {
            if is_first.take() {
                at_once(Box::pin(change(&broker, "mail", |state| {
                    state.scaled = Some(3)
                })));
            }
            state.on = false;
        });
        let off = off.await.unwrap().expect("the worker is declared");
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
        is_first.set(true);
        let on = change(&broker, "mail", |state| {
            if is_first.take() {
                at_once(Box::pin(remove(&broker, "mail")));
            }
            state.on = true;
        });
        assert_eq!(on.await.unwrap(), None, "it stays removed");
        assert_eq!(standings(&broker).await.unwrap(), []);
    }
}
