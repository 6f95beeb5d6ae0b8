//! What the types of a schedule cannot say.

use std::time::Duration;

use jiff::{
    Timestamp,
    tz::{TimeZone, TimeZoneDatabase},
};

use super::Schedule;
use crate::spec::{
    InvalidSpec,
    validate::{check, invalid},
};

/// What is due more often is a loop, and belongs into a task of its own.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST_NAME: usize = 64;

impl Schedule {
    /// Refuses what could never be fired, and what means nothing.
    pub fn validate(&self) -> Result<(), InvalidSpec> {
        check(is_slug(&self.name), "name", "must be 1 to 64 letters, digits, or . _ -")?;
        match (&self.every, &self.cron) {
            (Some(every), None) => {
                check(every.0 >= SHORTEST, "every", "must be at least 10ms")?;
                check(
                    self.timezone.is_none(),
                    "timezone",
                    "means nothing without cron: what is due every so often is so everywhere",
                )?;
            }
            (None, Some(_)) => check(known_zone(self.zone()).is_some(), "timezone", &no_zone(self.zone()))?,
            (Some(_), Some(_)) => return Err(invalid("cron", "and every exclude each other: give one")),
            (None, None) => return Err(invalid("every", "and cron are both absent: say when it is due")),
        }
        check(self.lifetime.is_none_or(|life| !life.0.is_zero()), "lifetime", "must be longer than zero")?;
        check(
            !matches!((self.lifetime, self.jitter), (Some(life), Some(jitter)) if life <= jitter),
            "jitter",
            "must be shorter than the lifetime: else a task could expire before it may begin",
        )?;
        self.validate_task()
    }

    fn validate_task(&self) -> Result<(), InvalidSpec> {
        let said_here = |path, is_absent| check(is_absent, path, "belongs to the schedule: it says when a task begins");
        said_here("task.delay", self.task.delay.is_none())?;
        said_here("task.run_at", self.task.run_at.is_none())?;
        let lives_here = |path, is_absent| check(is_absent, path, "belongs to the schedule: give it a lifetime");
        lives_here("task.lifetime", self.task.lifetime.is_none())?;
        lives_here("task.run_before", self.task.run_before.is_none())?;
        // As it will be submitted.
        let inside = |InvalidSpec { path, reason }| InvalidSpec { path: format!("task.{path}").into(), reason };
        self.task_for(Timestamp::UNIX_EPOCH).validate().map_err(inside)
    }
}

/// Whether a text can be the name of a schedule.
pub fn is_slug(text: &str) -> bool {
    (1..=LONGEST_NAME).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// The time zone of this name, by the rules that this program was built with. A name that is not known here is none.
pub fn known_zone(name: &str) -> Option<TimeZone> {
    TimeZoneDatabase::bundled().get(name).ok()
}

fn no_zone(name: &str) -> String {
    format!("'{name}' is not a time zone: write its IANA name, as Europe/Berlin")
}
