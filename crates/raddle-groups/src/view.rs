//! Listing and changing groups.

use raddle_broker::Broker;
use raddle_model::{
    Tid, WorkerEntry,
    worker::{WorkerStatus, kind},
};
use serde::Serialize;

use super::{
    DesiredState,
    desired_state::{change, desired_states, remove},
};
use raddle_client::schedule;
use raddle_worker::{host::start_failures, registration::is_running};

/// The state of a group worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupWorkerView {
    /// Its name, which is also the name of its queue.
    pub slug: String,
    /// The process that hosts it.
    pub process: String,
    /// Whether it is on.
    pub on: bool,
    /// Replicas that it should have.
    pub replicas: u32,
    /// Live processes that serve it.
    pub live: usize,
    /// Tasks that they run.
    pub busy: u64,
    /// Tasks that wait for it.
    pub waiting: u64,
    /// Queues whose messages are events for it.
    pub sources: Vec<String>,
    /// PIDs of the processes that serve it.
    pub pids: Vec<u32>,
    /// Its managers.
    pub managers: Vec<GroupManagerRef>,
    /// Why its hosts do not start at present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl GroupWorkerView {
    /// Whether it collects messages without a live manager.
    pub fn is_unmanaged(&self) -> bool {
        self.managers.is_empty() && !self.sources.is_empty()
    }
}

/// A manager of a worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupManagerRef {
    /// Its id.
    pub tid: Tid,
    /// Its name.
    pub name: String,
    /// Its status.
    pub status: WorkerStatus,
}

/// A worker that was forgotten, and what remains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForgottenWorker {
    /// Its name, which is also the name of its queue.
    pub slug: String,
    /// Tasks that still wait there.
    pub waiting: u64,
    /// Its sources, whose messages are no longer events for it.
    pub sources: Vec<String>,
    /// Sources without any subscriber now. Their messages stay.
    pub unread: Vec<String>,
}

/// Why a group was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupChangeError {
    /// The broker failed.
    #[error(transparent)]
    Broker(#[from] raddle_broker::Error),
    /// The worker is unknown.
    #[error("there is no worker '{0}' in any group: see 'raddle group list'")]
    Absent(String),
    /// It cannot have more than one replica.
    #[error(
        "'{0}' shares its process or has a trigger, so it has one replica: turn it off and on instead"
    )]
    Single(String),
    /// It has a manager.
    #[error(
        "'{slug}' is kept by the manager {tid}: remove it from its raddle.toml and restart that, or stop it with 'raddle task stop {tid}'"
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

/// Lists all known group workers.
pub async fn list(broker: &dyn Broker) -> Result<Vec<GroupWorkerView>, raddle_broker::Error> {
    let (known, workers, summary) = (
        desired_states(broker).await?,
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
            managers: managers_of(&workers, &state.slug),
            replicas: state.wanted(),
            slug: state.slug,
            process: state.process,
            on: state.on,
            sources: state.sources,
            failure: None,
        }
    };
    let mut views: Vec<GroupWorkerView> = known.into_iter().map(view).collect();
    for view in &mut views {
        let is_failing = |entry: &WorkerEntry| {
            entry.info.serves(&view.slug) && entry.status == WorkerStatus::BackingOff
        };
        // A process whose host does not start has either said so, or has exited.
        if view.on && (view.live < view.replicas as usize || workers.iter().any(is_failing)) {
            view.failure = last_failure(broker, view).await?;
        }
    }
    Ok(views)
}

/// Why hosts of a worker did not start, as its processes told its managers.
async fn last_failure(
    broker: &dyn Broker,
    view: &GroupWorkerView,
) -> Result<Option<String>, raddle_broker::Error> {
    let mut last = None;
    for manager in &view.managers {
        let failures = start_failures(broker, manager.tid).await?;
        last = last.max(
            failures
                .into_iter()
                .filter(|failure| failure.queues.contains(&view.slug))
                .map(|failure| (failure.at, failure.host_failure))
                .max(),
        );
    }
    Ok(last.map(|(_, reason)| reason))
}

/// The managers of a worker, even if it is off.
pub(super) fn managers_of(workers: &[WorkerEntry], slug: &str) -> Vec<GroupManagerRef> {
    let is_manager_of = |entry: &&WorkerEntry| {
        entry.info.kind == kind::GROUP
            && entry.info.capabilities.iter().any(|of| of == slug)
            && is_running(entry)
    };
    let manager = |entry: &WorkerEntry| GroupManagerRef {
        tid: entry.tid,
        name: entry.info.name.clone(),
        status: entry.status,
    };
    workers.iter().filter(is_manager_of).map(manager).collect()
}

/// Turns a worker on or off. While it is off its tasks wait, and its trigger makes none.
pub async fn set_worker_on(
    broker: &dyn Broker,
    slug: &str,
    on: bool,
) -> Result<DesiredState, GroupChangeError> {
    let state = change(broker, slug, |state| state.on = on).await?;
    let state = state.ok_or_else(|| GroupChangeError::Absent(slug.into()))?;
    // A schedule without owner is not the group's.
    let is_owned = async || {
        Ok::<_, GroupChangeError>(
            broker
                .schedule(slug)
                .await?
                .is_some_and(|view| view.entry.owner.is_some()),
        )
    };
    if state.triggered && is_owned().await? {
        let result = if on {
            schedule::resume(broker, slug).await
        } else {
            schedule::pause(broker, slug).await
        };
        match result {
            // It was removed meanwhile.
            Ok(_) | Err(schedule::Error::Absent(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(state)
}

/// Forgets a worker without a manager: its sources make no more tasks. Waiting tasks stay.
pub async fn forget(broker: &dyn Broker, slug: &str) -> Result<ForgottenWorker, GroupChangeError> {
    if let Some(manager) = managers_of(&broker.workers().await?, slug).first() {
        return Err(GroupChangeError::Kept {
            slug: slug.into(),
            tid: manager.tid,
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
    let others = desired_states(broker).await?;
    let has_no_subscriber =
        |source: &&String| !others.iter().any(|other| other.sources.contains(source));
    let unread = state
        .sources
        .iter()
        .filter(has_no_subscriber)
        .cloned()
        .collect();
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

/// Sets the number of replicas of a worker, overriding its file.
pub async fn scale(
    broker: &dyn Broker,
    slug: &str,
    replicas: u32,
) -> Result<DesiredState, GroupChangeError> {
    let known = desired_states(broker).await?;
    let before = known.into_iter().find(|state| state.slug == slug);
    let before = before.ok_or_else(|| GroupChangeError::Absent(slug.into()))?;
    if !before.scales && replicas != 1 {
        return Err(GroupChangeError::Single(slug.into()));
    }
    let state = change(broker, slug, |state| state.scaled = Some(replicas)).await?;
    state.ok_or_else(|| GroupChangeError::Absent(slug.into()))
}
