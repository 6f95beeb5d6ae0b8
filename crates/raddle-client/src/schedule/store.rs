//! Changes of schedules: read, decide, compare and swap. A change that lost a race is retried.

use jiff::{Timestamp, tz::TimeZone};
use raddle_broker::{
    Broker, NewTask, ScheduleChange, ScheduleChangeOutcome, ScheduleView, Submitted,
};
use raddle_model::{Schedule, schedule::ScheduleEntry, spec::InvalidSpec};

use super::zone::zone;

/// Why a schedule was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker failed.
    #[error(transparent)]
    Broker(#[from] raddle_broker::Error),
    /// No schedule has this name.
    #[error("there is no schedule '{0}': see 'raddle schedule list'")]
    Absent(String),
    /// Another schedule has this name.
    #[error(
        "there is another schedule '{0}': replace it with --replace, or give this one another name"
    )]
    Exists(String),
    /// A schedule of this name was not made by the manager.
    #[error(
        "there is a schedule '{0}' that was written by hand: remove it with 'raddle schedule remove {0}', or give one of the two another name"
    )]
    NotOwned(String),
    /// The schedule is invalid.
    #[error("the schedule cannot be used, {0}")]
    Invalid(#[from] InvalidSpec),
    /// It changed between read and write each time.
    #[error("schedule '{0}' changes too often: try again")]
    Contended(String),
}

/// The change that storing a schedule made.
#[derive(Clone, Debug, PartialEq)]
pub enum PutOutcome {
    /// It is new.
    Added(ScheduleEntry),
    /// It replaced a different schedule.
    Replaced(ScheduleEntry),
    /// The same schedule was stored before.
    Unchanged(ScheduleEntry),
}

/// Most retries of a change. Only a schedule with many due times a second needs so many.
const MAX_TRIES: usize = 100;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Stores a schedule. With `replaces`, it replaces another schedule of its name. The same schedule
/// is left as it is.
///
/// The schedule then has no owner, so managers of groups do not change it.
pub async fn put(broker: &dyn Broker, schedule: Schedule, replaces: bool) -> Result<PutOutcome> {
    store(broker, schedule, None, replaces).await
}

/// Stores a schedule of a manager's file. A schedule of this name without owner is left as it is.
pub async fn put_owned(broker: &dyn Broker, schedule: Schedule, owner: &str) -> Result<PutOutcome> {
    store(broker, schedule, Some(owner.to_owned()), true).await
}

async fn store(
    broker: &dyn Broker,
    schedule: Schedule,
    owner: Option<String>,
    replaces: bool,
) -> Result<PutOutcome> {
    schedule.validate()?;
    let zone = resolve_zone(&schedule)?;
    for _ in 0..MAX_TRIES {
        let now = broker_time(broker).await?;
        let found = broker.schedule(&schedule.name).await?;
        let (seen, put) = match found {
            None => (
                None,
                PutOutcome::Added(ScheduleEntry {
                    owner: owner.clone(),
                    ..ScheduleEntry::new(schedule.clone(), &zone, now)
                }),
            ),
            Some(view) if owner.is_some() && view.entry.owner.is_none() => {
                return Err(Error::NotOwned(schedule.name));
            }
            Some(view) => match view.entry.rewritten(schedule.clone(), &zone, now) {
                // Storing by hand what a file already stores changes nothing.
                None if owner.is_none() || view.entry.owner == owner => {
                    return Ok(PutOutcome::Unchanged(view.entry));
                }
                Some(_) if !replaces => return Err(Error::Exists(schedule.name)),
                rewritten => {
                    let entry = rewritten.unwrap_or(view.entry);
                    (
                        Some(view.version),
                        PutOutcome::Replaced(ScheduleEntry {
                            owner: owner.clone(),
                            ..entry
                        }),
                    )
                }
            },
        };
        let change = ScheduleChange {
            name: schedule.name.clone(),
            expected: seen,
            entry: Some(put.entry().clone()),
            tasks: Vec::new(),
            due: None,
        };
        if let ScheduleChangeOutcome::Applied { .. } = broker.change_schedule(change).await? {
            return Ok(put);
        }
    }
    Err(Error::Contended(schedule.name))
}

/// Pauses a schedule. Returns whether that changed anything.
pub async fn pause(broker: &dyn Broker, name: &str) -> Result<bool> {
    update(broker, name, |view, _| Ok(view.entry.paused().map(Some))).await
}

/// Resumes a schedule. Returns whether that changed anything. Due times in the pause are skipped.
pub async fn resume(broker: &dyn Broker, name: &str) -> Result<bool> {
    update(broker, name, |view, now| {
        Ok(view
            .entry
            .resumed(&resolve_zone(&view.entry.schedule)?, now)
            .map(Some))
    })
    .await
}

/// Removes a schedule. Tasks that it has submitted stay.
pub async fn remove(broker: &dyn Broker, name: &str) -> Result<()> {
    update(broker, name, |_, _| Ok(Some(None))).await.map(drop)
}

/// Removes a schedule that is no longer in a manager's file, if the manager still owns it. Returns
/// whether it was removed.
pub async fn remove_owned(broker: &dyn Broker, name: &str, owner: &str) -> Result<bool> {
    let is_owned = |view: &ScheduleView| view.entry.owner.as_deref() == Some(owner);
    match update(broker, name, |view, _| Ok(is_owned(view).then_some(None))).await {
        Err(Error::Absent(_)) => Ok(false),
        removed => removed,
    }
}

/// Submits the task of a schedule now, even if it is paused. Its due times do not change.
pub async fn run_now(broker: &dyn Broker, name: &str) -> Result<Submitted> {
    let view = broker
        .schedule(name)
        .await?
        .ok_or_else(|| Error::Absent(name.into()))?;
    let mut task = view.entry.schedule.task_for(broker_time(broker).await?);
    task.run_at = None;
    let submitted = broker.submit(vec![NewTask::new(task)]).await?;
    submitted
        .first()
        .copied()
        .ok_or(Error::Broker(raddle_broker::Error::Closed))
}

/// Changes a schedule to what `decide` returns for its entry and the current time: another entry,
/// or none to remove it. Returns whether it was changed.
async fn update(
    broker: &dyn Broker,
    name: &str,
    decide: impl Fn(&ScheduleView, Timestamp) -> Result<Option<Option<ScheduleEntry>>>,
) -> Result<bool> {
    for _ in 0..MAX_TRIES {
        let view = broker
            .schedule(name)
            .await?
            .ok_or_else(|| Error::Absent(name.into()))?;
        let Some(entry) = decide(&view, broker_time(broker).await?)? else {
            return Ok(false);
        };
        let seen = Some(view.version);
        let change = ScheduleChange {
            name: name.into(),
            expected: seen,
            entry,
            tasks: Vec::new(),
            due: None,
        };
        if let ScheduleChangeOutcome::Applied { .. } = broker.change_schedule(change).await? {
            return Ok(true);
        }
    }
    Err(Error::Contended(name.into()))
}

/// The time on the broker's clock.
async fn broker_time(broker: &dyn Broker) -> Result<Timestamp> {
    Ok(broker.due_items(std::time::Duration::ZERO).await?.now)
}

fn resolve_zone(schedule: &Schedule) -> Result<TimeZone> {
    let unknown = || InvalidSpec {
        path: "timezone".into(),
        reason: format!("'{}' is not known to this version", schedule.zone()),
    };
    zone(schedule.zone()).ok_or_else(|| Error::Invalid(unknown()))
}

impl PutOutcome {
    /// The stored entry.
    pub fn entry(&self) -> &ScheduleEntry {
        match self {
            Self::Added(entry) | Self::Replaced(entry) | Self::Unchanged(entry) => entry,
        }
    }
}
