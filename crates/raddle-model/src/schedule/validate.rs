//! Checks of a schedule beyond what its types enforce.

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

/// A schedule with a shorter interval is a loop, which belongs in a long-running task.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
const MAX_NAME_LENGTH: usize = 64;

impl Schedule {
    /// Refuses schedules that could never fire, and combinations without a meaning.
    pub fn validate(&self) -> Result<(), InvalidSpec> {
        check(
            is_slug(&self.name),
            "name",
            "must be 1 to 64 letters, digits, or . _ -",
        )?;
        match (&self.every, &self.cron) {
            (Some(every), None) => {
                check(every.0 >= MIN_INTERVAL, "every", "must be at least 10ms")?;
                check(
                    self.timezone.is_none(),
                    "timezone",
                    "means nothing without cron: an interval does not depend on a time zone",
                )?;
            }
            (None, Some(_)) => check(
                known_zone(self.zone()).is_some(),
                "timezone",
                &unknown_zone(self.zone()),
            )?,
            (Some(_), Some(_)) => {
                return Err(invalid("cron", "and every exclude each other: give one"));
            }
            (None, None) => {
                return Err(invalid(
                    "every",
                    "and cron are both absent: say when it is due",
                ));
            }
        }
        check(
            self.lifetime.is_none_or(|life| !life.0.is_zero()),
            "lifetime",
            "must be longer than zero",
        )?;
        check(
            !matches!((self.lifetime, self.jitter), (Some(life), Some(jitter)) if life <= jitter),
            "jitter",
            "must be shorter than the lifetime: otherwise a task could expire before it may start",
        )?;
        self.validate_task()
    }

    fn validate_task(&self) -> Result<(), InvalidSpec> {
        let check_no_start = |path, is_absent| {
            check(
                is_absent,
                path,
                "belongs to the schedule: it says when a task begins",
            )
        };
        check_no_start("task.delay", self.task.delay.is_none())?;
        check_no_start("task.run_at", self.task.run_at.is_none())?;
        let check_no_expiry = |path, is_absent| {
            check(
                is_absent,
                path,
                "belongs to the schedule: give it a lifetime",
            )
        };
        check_no_expiry("task.lifetime", self.task.lifetime.is_none())?;
        check_no_expiry("task.run_before", self.task.run_before.is_none())?;
        // Validate the task as it will be submitted.
        let prefix_path = |InvalidSpec { path, reason }| InvalidSpec {
            path: format!("task.{path}").into(),
            reason,
        };
        self.task_for(Timestamp::UNIX_EPOCH)
            .validate()
            .map_err(prefix_path)
    }
}

/// Returns whether a text can be the name of a schedule.
pub fn is_slug(text: &str) -> bool {
    (1..=MAX_NAME_LENGTH).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Returns the time zone of this name, from the database that this program was built with. Zone
/// files of the operating system are not read.
pub fn known_zone(name: &str) -> Option<TimeZone> {
    TimeZoneDatabase::bundled().get(name).ok()
}

fn unknown_zone(name: &str) -> String {
    format!("'{name}' is not a time zone: write its IANA name, as Europe/Berlin")
}
