//! What people see of groups, and do to them.

use raddle_broker::Broker;
use raddle_core::WorkerEntry;
use serde::Serialize;

use super::{
    Standing,
    life::KIND,
    standing::{change, standings},
};
use crate::schedule;

/// A worker of a group, as it stands.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct View {
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
    /// What its manager is doing, if there is one. Which of several it is cannot be told.
    pub manager: Option<String>,
}

/// Why a group was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The broker could not be asked.
    #[error(transparent)]
    Broker(#[from] raddle_broker::Error),
    /// There is no such worker.
    #[error("there is no worker '{0}' in any group: see 'raddle group list'")]
    Absent(String),
    /// There cannot be more than one of it.
    #[error("'{0}' is not alone in its process, or has a trigger: there can be one of it. Turn it off and on instead")]
    Single(String),
    /// Its trigger could not be paused, or let go on.
    #[error(transparent)]
    Trigger(#[from] schedule::Error),
}

/// All workers of groups that the broker knows of.
pub async fn list(broker: &dyn Broker) -> Result<Vec<View>, raddle_broker::Error> {
    let (known, workers, summary) = (standings(broker).await?, broker.workers().await?, broker.summary().await?);
    let managers: Vec<&WorkerEntry> = workers.iter().filter(|entry| entry.info.kind == KIND).collect();
    let view = |standing: Standing| {
        let serving: Vec<&WorkerEntry> = workers.iter().filter(|entry| entry.info.serves(&standing.slug)).collect();
        View {
            live: serving.len(),
            busy: serving.iter().map(|entry| (entry.load * f64::from(entry.info.concurrency)).round() as u64).sum(),
            waiting: summary.ready.get(&standing.slug).copied().unwrap_or_default(),
            pids: serving.iter().map(|entry| entry.info.pid).collect(),
            manager: managers.first().map(|entry| entry.status.as_str().to_owned()),
            replicas: standing.wanted(),
            slug: standing.slug,
            process: standing.process,
            on: standing.on,
            sources: standing.sources,
        }
    };
    Ok(known.into_iter().map(view).collect())
}

/// Turns a worker off or on. What comes for it meanwhile waits, but for what its trigger would have made.
pub async fn turn(broker: &dyn Broker, slug: &str, on: bool) -> Result<Standing, ChangeError> {
    let standing = change(broker, slug, |standing| standing.on = on).await?;
    let standing = standing.ok_or_else(|| ChangeError::Absent(slug.into()))?;
    if standing.triggered {
        let turned = if on { schedule::resume(broker, slug).await } else { schedule::pause(broker, slug).await };
        match turned {
            // Somebody has removed it.
            Ok(_) | Err(schedule::Error::Absent(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(standing)
}

/// Has so many processes of a worker, until this is said again.
pub async fn scale(broker: &dyn Broker, slug: &str, replicas: u32) -> Result<Standing, ChangeError> {
    let known = standings(broker).await?;
    let before = known.into_iter().find(|standing| standing.slug == slug);
    let before = before.ok_or_else(|| ChangeError::Absent(slug.into()))?;
    if !before.scales && replicas > 1 {
        return Err(ChangeError::Single(slug.into()));
    }
    let standing = change(broker, slug, |standing| standing.scaled = Some(replicas)).await?;
    standing.ok_or_else(|| ChangeError::Absent(slug.into()))
}
