//! What people do to schedules. Each is a look and a change from what was seen; where somebody else was faster, it is done again.

use jiff::{Timestamp, tz::TimeZone};
use raddle_broker::{
    Broker, NewTask, ScheduleChange, ScheduleChangeOutcome, ScheduleView, Submitted,
};
use raddle_model::{Schedule, schedule::ScheduleEntry, spec::InvalidSpec};

use super::zone::zone;

/// Why nothing was done to a schedule.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The broker could not be asked.
    #[error(transparent)]
    Broker(#[from] raddle_broker::Error),
    /// There is none of this name.
    #[error("there is no schedule '{0}': see 'raddle schedule list'")]
    Absent(String),
    /// There is another of this name.
    #[error(
        "there is another schedule '{0}': replace it with --replace, or give this one another name"
    )]
    Exists(String),
    /// It belongs to somebody else.
    #[error(
        "there is a schedule '{0}' that was written by hand: remove it with 'raddle schedule remove {0}', or give one of the two another name"
    )]
    ByHand(String),
    /// It is none that could be fired.
    #[error("the schedule cannot be used, {0}")]
    Invalid(#[from] InvalidSpec),
    /// Others change it all the time.
    #[error("schedule '{0}' does not hold still: try again")]
    Restless(String),
}

/// What became of a schedule that was put.
#[derive(Clone, Debug, PartialEq)]
pub enum PutOutcome {
    /// It is new.
    Added(ScheduleEntry),
    /// It was there, and said something else.
    Replaced(ScheduleEntry),
    /// It was there, and said the same.
    Unchanged(ScheduleEntry),
}

/// How often a change is tried. Only due times that come many times a second would need so many.
const TRIES: usize = 100;

type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds a schedule, or puts it in the place of another of its name if it `replaces` that. One that says the same is left as it is.
///
/// From then on it is a person's, and no manager of groups touches it.
pub async fn put(broker: &dyn Broker, schedule: Schedule, replaces: bool) -> Result<PutOutcome> {
    place(broker, schedule, None, replaces).await
}

/// Adds a schedule that a manager of this name has in its file, or changes it to what that says now. One that was written by hand is left alone.
pub async fn put_of(broker: &dyn Broker, schedule: Schedule, owner: &str) -> Result<PutOutcome> {
    place(broker, schedule, Some(owner.to_owned()), true).await
}

async fn place(
    broker: &dyn Broker,
    schedule: Schedule,
    owner: Option<String>,
    replaces: bool,
) -> Result<PutOutcome> {
    schedule.validate()?;
    let zone = zone_of(&schedule)?;
    for _ in 0..TRIES {
        let now = clock(broker).await?;
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
                return Err(Error::ByHand(schedule.name));
            }
            Some(view) => match view.entry.rewritten(schedule.clone(), &zone, now) {
                // Who says by hand what a file says has nothing to say.
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
    Err(Error::Restless(schedule.name))
}

/// Pauses a schedule. Returns whether it was not paused before.
pub async fn pause(broker: &dyn Broker, name: &str) -> Result<bool> {
    alter(broker, name, |view, _| Ok(view.entry.paused().map(Some))).await
}

/// Lets a paused schedule go on. Returns whether it was paused before. What was due meanwhile is left out.
pub async fn resume(broker: &dyn Broker, name: &str) -> Result<bool> {
    alter(broker, name, |view, now| {
        Ok(view
            .entry
            .resumed(&zone_of(&view.entry.schedule)?, now)
            .map(Some))
    })
    .await
}

/// Removes a schedule. Tasks that were submitted for it stay.
pub async fn remove(broker: &dyn Broker, name: &str) -> Result<()> {
    alter(broker, name, |_, _| Ok(Some(None))).await.map(drop)
}

/// Removes a schedule that is in no file any more, unless it has another owner by now. Returns whether it did.
pub async fn remove_of(broker: &dyn Broker, name: &str, owner: &str) -> Result<bool> {
    let is_its = |view: &ScheduleView| view.entry.owner.as_deref() == Some(owner);
    match alter(broker, name, |view, _| Ok(is_its(view).then_some(None))).await {
        Err(Error::Absent(_)) => Ok(false),
        removed => removed,
    }
}

/// Submits the task of a schedule now, whether it is paused or not. Its due times are as they were.
pub async fn run_now(broker: &dyn Broker, name: &str) -> Result<Submitted> {
    let view = broker
        .schedule(name)
        .await?
        .ok_or_else(|| Error::Absent(name.into()))?;
    let mut task = view.entry.schedule.task_for(clock(broker).await?);
    task.run_at = None;
    let submitted = broker.submit(vec![NewTask::new(task)]).await?;
    submitted
        .first()
        .copied()
        .ok_or(Error::Broker(raddle_broker::Error::Closed))
}

/// Changes a schedule as `decide` says, from what it is and the time: to another entry, or to none. Returns whether something was changed.
async fn alter(
    broker: &dyn Broker,
    name: &str,
    decide: impl Fn(&ScheduleView, Timestamp) -> Result<Option<Option<ScheduleEntry>>>,
) -> Result<bool> {
    for _ in 0..TRIES {
        let view = broker
            .schedule(name)
            .await?
            .ok_or_else(|| Error::Absent(name.into()))?;
        let Some(entry) = decide(&view, clock(broker).await?)? else {
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
    Err(Error::Restless(name.into()))
}

/// What the broker's clock shows.
async fn clock(broker: &dyn Broker) -> Result<Timestamp> {
    Ok(broker.due_items(std::time::Duration::ZERO).await?.now)
}

fn zone_of(schedule: &Schedule) -> Result<TimeZone> {
    let unknown = || InvalidSpec {
        path: "timezone".into(),
        reason: format!("'{}' is not known to this version", schedule.zone()),
    };
    zone(schedule.zone()).ok_or_else(|| Error::Invalid(unknown()))
}

impl PutOutcome {
    /// The entry from now on.
    pub fn entry(&self) -> &ScheduleEntry {
        match self {
            Self::Added(entry) | Self::Replaced(entry) | Self::Unchanged(entry) => entry,
        }
    }
}
