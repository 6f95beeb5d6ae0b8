//! Builder of schedules in code.

use std::time::Duration;

use jiff::Timestamp;

use super::{Cron, MissedPolicy, ParseCronError, Schedule};
use crate::{
    HumanDuration, TaskSpec,
    spec::{InvalidSpec, Target},
};

/// A schedule without its task. Errors are reported when the task is added.
#[derive(Clone, Debug)]
#[must_use = "a schedule without a task is never due"]
pub struct NewSchedule {
    schedule: Schedule,
    refused: Option<ParseCronError>,
}

impl NewSchedule {
    pub(super) fn every(name: String, every: Duration) -> Self {
        Self {
            schedule: Schedule {
                every: Some(HumanDuration(every)),
                ..blank(name)
            },
            refused: None,
        }
    }

    pub(super) fn cron(name: String, cron: &str) -> Self {
        match cron.parse::<Cron>() {
            Ok(cron) => Self {
                schedule: Schedule {
                    cron: Some(cron),
                    ..blank(name)
                },
                refused: None,
            },
            Err(error) => Self {
                schedule: blank(name),
                refused: Some(error),
            },
        }
    }

    /// Sets the time zone of the cron expression, by its IANA name.
    pub fn timezone(self, zone: impl Into<String>) -> Self {
        self.with(|schedule| schedule.timezone = Some(zone.into()))
    }

    /// Sets the time before which nothing is due.
    pub fn start(self, at: Timestamp) -> Self {
        self.with(|schedule| schedule.start = Some(at))
    }

    /// Sets what happens to due times that no process was there to fire.
    pub fn missed(self, missed: MissedPolicy) -> Self {
        self.with(|schedule| schedule.missed = missed)
    }

    /// Sets how long after its due time a worker may still claim a task.
    pub fn lifetime(self, lifetime: Duration) -> Self {
        self.with(|schedule| schedule.lifetime = Some(HumanDuration(lifetime)))
    }

    /// Delays each task pseudo-randomly, by up to this much.
    pub fn jitter(self, jitter: Duration) -> Self {
        self.with(|schedule| schedule.jitter = Some(HumanDuration(jitter)))
    }

    /// Starts the schedule paused.
    pub fn paused(self) -> Self {
        self.with(|schedule| schedule.paused = true)
    }

    /// Completes the schedule with its task.
    pub fn task(self, task: TaskSpec) -> Result<Schedule, InvalidSpec> {
        if let Some(error) = self.refused {
            return Err(InvalidSpec {
                path: "cron".into(),
                reason: error.to_string(),
            });
        }
        let schedule = Schedule {
            task,
            ..self.schedule
        };
        schedule.validate()?;
        Ok(schedule)
    }

    fn with(mut self, change: impl FnOnce(&mut Schedule)) -> Self {
        change(&mut self.schedule);
        self
    }
}

fn blank(name: String) -> Schedule {
    Schedule {
        name,
        every: None,
        cron: None,
        timezone: None,
        start: None,
        missed: MissedPolicy::default(),
        lifetime: None,
        jitter: None,
        paused: false,
        task: TaskSpec::new(Target::Command(Vec::new())),
    }
}
