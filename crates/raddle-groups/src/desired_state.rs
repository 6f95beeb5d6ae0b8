//! `DesiredState`: the desired state of each worker, stored in the broker: its sources, whether it
//! is on, and its number of replicas.
//!
//! There is one message per worker in the queue `raddle.groups`, so all processes see it, and it
//! outlives managers. A change atomically replaces the message that it was decided from. If that is
//! gone, the change is decided again. If two managers declare a worker for the first time at the
//! same time there are two messages: the last one counts, and the next change replaces both. The
//! sources stay when a manager exits: messages become tasks that wait for the next one, as with a
//! consumer group.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use raddle_broker::{
    Broker, Message, MessageTransaction, Messages, NewMessage, PeekRequest, Result,
};
use raddle_model::{QueueName, TaskSpec, Tid, schedule::is_slug, worker::WorkerStatus};
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::sleep};

use super::{GroupWorker, ManagerError, Process, view::managers_of};

/// The queue.
const GROUPS: &str = "raddle.groups";
/// Most workers to read.
const MAX_WORKERS: u32 = 100_000;
/// Longest single wait. It is repeated, so nothing depends on the length.
const WAIT: Duration = Duration::from_secs(3600);
/// Pause after a broker error.
const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// The desired state of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DesiredState {
    /// Its name, which is also the name of its queue.
    pub slug: String,
    /// The process that hosts it.
    pub process: String,
    /// The file or program that declares it.
    #[serde(default)]
    pub file: Option<String>,
    /// Queues whose messages become tasks of this worker.
    #[serde(default)]
    pub sources: Vec<String>,
    /// The task for an event, without its message.
    #[serde(default)]
    pub event: Option<Box<TaskSpec>>,
    /// Whether it is on.
    pub on: bool,
    /// Replicas as the file declares.
    pub replicas: u32,
    /// Replicas as set at run time.
    #[serde(default)]
    pub scaled: Option<u32>,
    /// Whether more than one replica is allowed.
    pub scales: bool,
    /// Whether it has a trigger.
    #[serde(default)]
    pub triggered: bool,
}

/// All known workers, and their messages.
#[derive(Clone, Debug, Default)]
pub(super) struct DesiredStates {
    workers: BTreeMap<String, DesiredState>,
    messages: Vec<(String, Message)>,
    last: u64,
    /// How many broker outages have ended.
    pub(super) returns: u64,
}

fn queue() -> QueueName {
    GROUPS.parse().expect("it is the name of a queue")
}

impl DesiredState {
    /// The state that a file declares.
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

    /// The number of replicas.
    pub fn wanted(&self) -> u32 {
        self.scaled.unwrap_or(self.replicas)
    }

    /// Whether another state is from another file. One file may have several managers, at different
    /// paths on different machines, and may be newer than what other managers have read.
    fn is_from_another_file(&self, other: &Self) -> bool {
        let declares_the_same = |other: &Self| {
            let declaration = |of: &Self| {
                (
                    of.sources.clone(),
                    of.event.clone(),
                    of.replicas,
                    of.triggered,
                )
            };
            declaration(self) == declaration(other)
        };
        self.process != other.process || (self.file != other.file && !declares_the_same(other))
    }

    /// Keeps what was changed at run time.
    fn with_runtime_changes(self, before: &Self) -> Self {
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
                max: MAX_WORKERS,
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
                    tracing::debug!(id = %message.id, slug = state.slug, "skipped a message in {GROUPS} without a valid slug");
                }
                Ok(state) => {
                    all.messages.push((state.slug.clone(), message));
                    all.workers.insert(state.slug.clone(), state);
                }
                Err(error) => {
                    tracing::debug!(id = %message.id, %error, "skipped a malformed message in {GROUPS}")
                }
            }
        }
        all
    }

    pub(super) fn get(&self, slug: &str) -> Option<&DesiredState> {
        self.workers.get(slug)
    }

    /// The workers with this source.
    pub(super) fn subscribers(
        &self,
        source: &str,
    ) -> impl Iterator<Item = (&DesiredState, &TaskSpec)> {
        let has_source =
            move |state: &&DesiredState| state.sources.iter().any(|name| name == source);
        self.workers
            .values()
            .filter(has_source)
            .filter_map(|state| Some((state, state.event.as_deref()?)))
    }

    /// Replaces the message of a worker, or removes it. Returns `false` if it has changed since it
    /// was read.
    async fn replace(
        &self,
        broker: &dyn Messages,
        slug: &str,
        state: Option<&DesiredState>,
    ) -> Result<bool> {
        let of_worker = |(of, message): &(String, Message)| (of == slug).then(|| message.clone());
        let to_message = |state: &DesiredState| NewMessage {
            queue: queue(),
            body: serde_json::to_string(state).expect("it has only string keys"),
        };
        let transaction = MessageTransaction {
            queue: queue(),
            messages: self.messages.iter().filter_map(of_worker).collect(),
            tasks: Vec::new(),
            new_messages: state.map(to_message).into_iter().collect(),
        };
        Ok(broker.apply_transaction(transaction).await?.is_some())
    }

    /// Decides a new state from the current one, and repeats that until nothing has changed in
    /// between. Returns both.
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

/// Stores what a file declares of its workers. Changes made at run time stay. A slug that a manager
/// of another file has is refused.
///
/// A manager declares before it is registered, and again after that. If two declare one slug at the
/// same time, the one that writes last finds the other registered at its second declaration, or is
/// found.
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
            check_slug_is_free(broker, &known, &declared, manager).await?;
            let before = known.get(&worker.slug);
            let after = before.map_or_else(
                || declared.clone(),
                |before| declared.clone().with_runtime_changes(before),
            );
            if before == Some(&after) || known.replace(broker, &worker.slug, Some(&after)).await? {
                break;
            }
            known = DesiredStates::read(broker).await?;
        }
    }
    Ok(())
}

/// Refuses slugs that a manager of another file has. Writes nothing.
pub(super) async fn check_slugs(
    broker: &dyn Broker,
    processes: &[Process],
    file: Option<&str>,
    manager: Option<Tid>,
) -> Result<(), ManagerError> {
    let known = DesiredStates::read(broker).await?;
    for (process, worker) in workers_of(processes) {
        check_slug_is_free(
            broker,
            &known,
            &DesiredState::declared(process, worker, file),
            manager,
        )
        .await?;
    }
    Ok(())
}

/// Refuses a slug that a manager of another file has. `manager` is the one that declares it. The
/// registry is read after `known`: a manager that registers later declares again, and finds what
/// this one has written.
async fn check_slug_is_free(
    broker: &dyn Broker,
    known: &DesiredStates,
    declared: &DesiredState,
    manager: Option<Tid>,
) -> Result<(), ManagerError> {
    let slug = &declared.slug;
    let Some(before) = known
        .get(slug)
        .filter(|before| declared.is_from_another_file(before))
    else {
        return Ok(());
    };
    let mut managers_of = managers_of(&broker.workers().await?, slug).into_iter();
    match managers_of
        .find(|other| Some(other.tid) != manager && other.status != WorkerStatus::Draining)
    {
        None => Ok(()),
        Some(other) => Err(ManagerError::SlugTaken {
            slug: slug.clone(),
            process: before.process.clone(),
            file: before.file.clone().unwrap_or_else(|| "another file".into()),
            manager: other.tid,
        }),
    }
}

fn workers_of(processes: &[Process]) -> impl Iterator<Item = (&Process, &GroupWorker)> {
    processes
        .iter()
        .flat_map(|process| process.workers.iter().map(move |worker| (process, worker)))
}

/// The desired states of all known workers.
pub async fn desired_states(broker: &dyn Broker) -> Result<Vec<DesiredState>> {
    Ok(DesiredStates::read(broker)
        .await?
        .workers
        .into_values()
        .collect())
}

/// Changes the state of a worker. Returns `None` if it is unknown.
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

/// Removes a worker: its sources make no more tasks for it. Existing tasks stay. Returns its state.
pub(super) async fn remove(broker: &dyn Messages, slug: &str) -> Result<Option<DesiredState>> {
    Ok(DesiredStates::read(broker)
        .await?
        .update(broker, slug, |_| None)
        .await?
        .0)
}

/// Reports every change, without end.
pub(super) async fn follow_desired_states(
    broker: Arc<dyn Broker>,
    states: watch::Sender<DesiredStates>,
) {
    let (mut after, mut returns, mut is_away) = (0, 0, false);
    loop {
        let found = async {
            let mut known = DesiredStates::read(&*broker).await?;
            returns += u64::from(std::mem::take(&mut is_away));
            known.returns = returns;
            after = known.last.max(after);
            let _ = states.send(known);
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
            tracing::error!(%error, "the desired state of workers cannot be read: retrying");
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
    fn the_last_message_counts_and_malformed_ones_are_skipped() {
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
        let again = on.clone().with_runtime_changes(&off);
        assert_eq!(
            (again.on, again.wanted()),
            (false, 4),
            "a restart keeps changes made at run time"
        );
    }

    #[test]
    fn recognises_the_same_file_at_another_path_or_in_another_version() {
        let state = |process: &str, command: &str, file: &str| {
            let process = Process::new(process).worker(GroupWorker::command("mail", [command]));
            DesiredState::declared(&process, &process.workers[0], Some(file))
        };
        let one = state("post", "send", "/a.toml");
        for same in [
            state("post", "send", "/b.toml"),
            state("post", "send-2", "/a.toml"),
        ] {
            assert!(!one.is_from_another_file(&same), "{same:?}");
        }
        for other in [
            state("post", "sort", "/b.toml"),
            state("rest", "send", "/a.toml"),
        ] {
            assert!(one.is_from_another_file(&other), "{other:?}");
        }
    }

    /// Another change happens between the read and the write of a change.
    #[tokio::test(flavor = "multi_thread")]
    async fn concurrent_changes_are_not_lost() {
        let broker = Sqlite::in_memory().await.unwrap();
        let process = Process::new("p").worker(GroupWorker::command("mail", ["true"]));
        declare(&broker, &[process], None, None).await.unwrap();
        let at_once =
            |change: Change<'_>| block_in_place(|| Handle::current().block_on(change)).unwrap();
        let unchanged = Cell::new(true);
        let off = change(&broker, "mail", |state| {
            if unchanged.take() {
                at_once(Box::pin(change(&broker, "mail", |state| {
                    state.scaled = Some(3)
                })));
            }
            state.on = false;
        });
        let off = off.await.unwrap().expect("it is known");
        assert_eq!((off.on, off.wanted()), (false, 3));
        assert_eq!(desired_states(&broker).await.unwrap(), [off]);
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
        unchanged.set(true);
        let on = change(&broker, "mail", |state| {
            if unchanged.take() {
                at_once(Box::pin(remove(&broker, "mail")));
            }
            state.on = true;
        });
        assert_eq!(on.await.unwrap(), None, "it is not created again");
        assert_eq!(desired_states(&broker).await.unwrap(), []);
    }
}
