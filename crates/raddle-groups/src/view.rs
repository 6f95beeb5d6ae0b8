//! Operations on workers of groups: list, switch, scale and forget.

use raddle_broker::Broker;
use raddle_model::{
    Tid, WorkerEntry,
    worker::{WorkerStatus, kind},
};
use serde::Serialize;

use super::{
    DesiredState,
    desired_state::{change, remove, standings},
};
use raddle_client::schedule;
use raddle_worker::registration::is_running;

/// A worker of a group, with its current state.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupWorkerView {
    /// Its name, and that of its queue.
    pub slug: String,
    /// The process that hosts it.
    pub process: String,
    /// Whether it is on.
    pub on: bool,
    /// How many replicas to run.
    pub replicas: u32,
    /// How many processes serve it.
    pub live: usize,
    /// How many tasks they run, as of their last renewal.
    pub busy: u64,
    /// How many tasks wait for it.
    pub waiting: u64,
    /// The queues whose messages are all events for it.
    pub sources: Vec<String>,
    /// The processes that serve it.
    pub pids: Vec<u32>,
    /// The managers that keep it.
    pub managers: Vec<GroupManagerRef>,
}

impl GroupWorkerView {
    /// Whether it still collects messages although no live manager keeps it.
    pub fn is_forsaken(&self) -> bool {
        self.managers.is_empty() && !self.sources.is_empty()
    }
}

/// A manager that keeps a worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupManagerRef {
    /// Its id.
    pub tid: Tid,
    /// Its name.
    pub name: String,
    /// Its status.
    pub status: WorkerStatus,
}

/// The result of `forget`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForgottenWorker {
    /// Its name, and that of its queue.
    pub slug: String,
    /// How many tasks wait in its queue, and stay there.
    pub waiting: u64,
    /// The queues whose messages are no longer events for it.
    pub sources: Vec<String>,
    /// Those of them that are a source of no other worker: their messages stay.
    pub unread: Vec<String>,
}

/// Reports why a group was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupChangeError {
    /// The broker failed.
    #[error(transparent)]
    Broker(#[from] raddle_broker::Error),
    /// No such worker exists.
    #[error("there is no worker '{0}' in any group: see 'raddle group list'")]
    Absent(String),
    /// The worker can have one replica only.
    #[error(
        "'{0}' is not alone in its process, or has a trigger: there can be one of it. Turn it off and on instead"
    )]
    Single(String),
    /// A manager keeps the worker.
    #[error(
        "'{slug}' is kept by the manager {tid}: take it out of its raddle.toml and start that again, or stop it with 'raddle task stop {tid}'"
    )]
    Kept {
        /// The worker.
        slug: String,
        /// Its manager.
        tid: Tid,
    },
    /// Its trigger could not be paused or resumed.
    #[error(transparent)]
    Trigger(#[from] schedule::Error),
}

/// All workers of groups that the broker knows of.
pub async fn list(broker: &dyn Broker) -> Result<Vec<GroupWorkerView>, raddle_broker::Error> {
    let (known, workers, summary) = (
        standings(broker).await?,
        broker.workers().await?,
        broker.summary().await?,
    );
    let view = |state: DesiredState| {
        let serving: Vec<&WorkerEntry> = workers
            .iter()
            .filter(|entry| entry.info.serves(&state.slug))
            .collect();
        GroupWorkerView {
            live: serving.len(),
            busy: serving
                .iter()
                .map(|entry| (entry.load * f64::from(entry.info.concurrency)).round() as u64)
                .sum(),
            waiting: summary.ready.get(&state.slug).copied().unwrap_or_default(),
            pids: serving.iter().map(|entry| entry.info.pid).collect(),
            managers: keepers(&workers, &state.slug),
            replicas: state.wanted(),
            slug: state.slug,
            process: state.process,
            on: state.on,
            sources: state.sources,
        }
    };
    Ok(known.into_iter().map(view).collect())
}

/// The managers that keep a worker, also if it is off.
pub(super) fn keepers(workers: &[WorkerEntry], slug: &str) -> Vec<GroupManagerRef> {
    let keeps = |entry: &&WorkerEntry| {
        entry.info.kind == kind::GROUP
            && entry.info.capabilities.iter().any(|of| of == slug)
            && is_running(entry)
    };
    let keeper = |entry: &WorkerEntry| GroupManagerRef {
        tid: entry.tid,
        name: entry.info.name.clone(),
        status: entry.status,
    };
    workers.iter().filter(keeps).map(keeper).collect()
}

/// Switches a worker on or off. While it is off, its events wait, but its trigger makes none.
pub async fn turn(
    broker: &dyn Broker,
    slug: &str,
    on: bool,
) -> Result<DesiredState, GroupChangeError> {
    let state = change(broker, slug, |state| state.on = on).await?;
    let state = state.ok_or_else(|| GroupChangeError::Absent(slug.into()))?;
    // A schedule without an owner was written by a person, and is not the group's.
    let is_owned = async || {
        Ok::<_, GroupChangeError>(
            broker
                .schedule(slug)
                .await?
                .is_some_and(|view| view.entry.owner.is_some()),
        )
    };
    if state.triggered && is_owned().await? {
        let switched = if on {
            schedule::resume(broker, slug).await
        } else {
            schedule::pause(broker, slug).await
        };
        match switched {
            // The schedule was removed meanwhile.
            Ok(_) | Err(schedule::Error::Absent(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(state)
}

/// Forgets a worker that no manager keeps: messages of its sources are no longer events for it.
/// Tasks that wait in its queue stay there.
pub async fn forget(broker: &dyn Broker, slug: &str) -> Result<ForgottenWorker, GroupChangeError> {
    if let Some(keeper) = keepers(&broker.workers().await?, slug).first() {
        return Err(GroupChangeError::Kept {
            slug: slug.into(),
            tid: keeper.tid,
        });
    }
    let state = remove(broker, slug)
        .await?
        .ok_or_else(|| GroupChangeError::Absent(slug.into()))?;
    let owner = broker
        .schedule(slug)
        .await?
        .and_then(|view| view.entry.owner);
    if let Some(owner) = owner {
        schedule::remove_owned(broker, slug, &owner).await?;
    }
    let others = standings(broker).await?;
    let is_unread = |source: &&String| !others.iter().any(|other| other.sources.contains(source));
    let unread = state.sources.iter().filter(is_unread).cloned().collect();
    let waiting = broker
        .summary()
        .await?
        .ready
        .get(slug)
        .copied()
        .unwrap_or_default();
    Ok(ForgottenWorker {
        slug: state.slug,
        waiting,
        sources: state.sources,
        unread,
    })
}

/// Sets the number of replicas of a worker, until it is set again.
pub async fn scale(
    broker: &dyn Broker,
    slug: &str,
    replicas: u32,
) -> Result<DesiredState, GroupChangeError> {
    let known = standings(broker).await?;
    let before = known.into_iter().find(|state| state.slug == slug);
    let before = before.ok_or_else(|| GroupChangeError::Absent(slug.into()))?;
    if !before.scales && replicas != 1 {
        return Err(GroupChangeError::Single(slug.into()));
    }
    let state = change(broker, slug, |state| state.scaled = Some(replicas)).await?;
    state.ok_or_else(|| GroupChangeError::Absent(slug.into()))
}
