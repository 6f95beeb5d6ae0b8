//! What people see of groups, and do to them.

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

/// A worker of a group, as it stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupWorkerView {
    /// Its name, and that of its queue.
    pub slug: String,
    /// The process that hosts it.
    pub process: String,
    /// Whether it is on.
    pub on: bool,
    /// How many processes there are to be of it.
    pub replicas: u32,
    /// How many there are that serve it.
    pub live: usize,
    /// Tasks that they run, as far as is known.
    pub busy: u64,
    /// Tasks that wait for it.
    pub waiting: u64,
    /// The queues whose every message is an event for it.
    pub sources: Vec<String>,
    /// The processes that serve it.
    pub pids: Vec<u32>,
    /// Those that keep it.
    pub managers: Vec<GroupManagerRef>,
}

impl GroupWorkerView {
    /// Whether it goes on collecting messages although no manager that is there keeps it.
    pub fn is_forsaken(&self) -> bool {
        self.managers.is_empty() && !self.sources.is_empty()
    }
}

/// A manager that keeps a worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupManagerRef {
    /// Its id.
    pub tid: Tid,
    /// What it is called.
    pub name: String,
    /// What it is doing.
    pub status: WorkerStatus,
}

/// A worker that was forgotten, and what is left of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForgottenWorker {
    /// Its name, and that of its queue.
    pub slug: String,
    /// Tasks that wait there, and go on waiting.
    pub waiting: u64,
    /// The queues whose messages are events for it no more.
    pub sources: Vec<String>,
    /// Those of them that are events for nobody now: their messages stay.
    pub unread: Vec<String>,
}

/// Why a group was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupChangeError {
    /// The broker could not be asked.
    #[error(transparent)]
    Broker(#[from] raddle_broker::Error),
    /// There is no such worker.
    #[error("there is no worker '{0}' in any group: see 'raddle group list'")]
    Absent(String),
    /// There cannot be more than one of it.
    #[error(
        "'{0}' is not alone in its process, or has a trigger: there can be one of it. Turn it off and on instead"
    )]
    Single(String),
    /// Somebody keeps it.
    #[error(
        "'{slug}' is kept by the manager {tid}: take it out of its raddle.toml and start that again, or stop it with 'raddle task stop {tid}'"
    )]
    Kept {
        /// The worker.
        slug: String,
        /// Its manager.
        tid: Tid,
    },
    /// Its trigger could not be paused, or let go on.
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
    let view = |standing: DesiredState| {
        let serving: Vec<&WorkerEntry> = workers
            .iter()
            .filter(|entry| entry.info.serves(&standing.slug))
            .collect();
        GroupWorkerView {
            live: serving.len(),
            busy: serving
                .iter()
                .map(|entry| (entry.load * f64::from(entry.info.concurrency)).round() as u64)
                .sum(),
            waiting: summary
                .ready
                .get(&standing.slug)
                .copied()
                .unwrap_or_default(),
            pids: serving.iter().map(|entry| entry.info.pid).collect(),
            managers: keepers(&workers, &standing.slug),
            replicas: standing.wanted(),
            slug: standing.slug,
            process: standing.process,
            on: standing.on,
            sources: standing.sources,
        }
    };
    Ok(known.into_iter().map(view).collect())
}

/// The managers that keep a worker, also while it is off.
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

/// Turns a worker off or on. What comes for it meanwhile waits, but for what its trigger would have made.
pub async fn turn(
    broker: &dyn Broker,
    slug: &str,
    on: bool,
) -> Result<DesiredState, GroupChangeError> {
    let standing = change(broker, slug, |standing| standing.on = on).await?;
    let standing = standing.ok_or_else(|| GroupChangeError::Absent(slug.into()))?;
    // One that a person has put in its place is not the group's.
    let is_owned = async || {
        Ok::<_, GroupChangeError>(
            broker
                .schedule(slug)
                .await?
                .is_some_and(|view| view.entry.owner.is_some()),
        )
    };
    if standing.triggered && is_owned().await? {
        let turned = if on {
            schedule::resume(broker, slug).await
        } else {
            schedule::pause(broker, slug).await
        };
        match turned {
            // Somebody has removed it.
            Ok(_) | Err(schedule::Error::Absent(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(standing)
}

/// Forgets a worker that no manager has any more: nothing is an event for it from now on. What waits in its queue stays there.
pub async fn forget(broker: &dyn Broker, slug: &str) -> Result<ForgottenWorker, GroupChangeError> {
    if let Some(keeper) = keepers(&broker.workers().await?, slug).first() {
        return Err(GroupChangeError::Kept {
            slug: slug.into(),
            tid: keeper.tid,
        });
    }
    let standing = remove(broker, slug)
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
    let unread = standing.sources.iter().filter(is_unread).cloned().collect();
    let waiting = broker
        .summary()
        .await?
        .ready
        .get(slug)
        .copied()
        .unwrap_or_default();
    Ok(ForgottenWorker {
        slug: standing.slug,
        waiting,
        sources: standing.sources,
        unread,
    })
}

/// Has so many processes of a worker, until this is said again.
pub async fn scale(
    broker: &dyn Broker,
    slug: &str,
    replicas: u32,
) -> Result<DesiredState, GroupChangeError> {
    let known = standings(broker).await?;
    let before = known.into_iter().find(|standing| standing.slug == slug);
    let before = before.ok_or_else(|| GroupChangeError::Absent(slug.into()))?;
    if !before.scales && replicas != 1 {
        return Err(GroupChangeError::Single(slug.into()));
    }
    let standing = change(broker, slug, |standing| standing.scaled = Some(replicas)).await?;
    standing.ok_or_else(|| GroupChangeError::Absent(slug.into()))
}
