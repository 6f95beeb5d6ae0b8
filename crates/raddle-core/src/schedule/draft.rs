//! Writing a schedule in code.

use std::time::Duration;

use jiff::Timestamp;

use super::{Cron, Missed, ParseCronError, Schedule};
use crate::{
    Span, Spec,
    spec::{InvalidSpec, Target},
};

/// A schedule without its task. What is wrong with it is said when it gets one.
#[derive(Clone, Debug)]
#[must_use = "a schedule without a task is never due"]
pub struct Draft {
    schedule: Schedule,
    refused: Option<ParseCronError>,
}

impl Draft {
    pub(super) fn every(name: String, every: Duration) -> Self {
        Self { schedule: Schedule { every: Some(Span(every)), ..blank(name) }, refused: None }
    }

    pub(super) fn cron(name: String, cron: &str) -> Self {
        match cron.parse::<Cron>() {
            Ok(cron) => Self { schedule: Schedule { cron: Some(cron), ..blank(name) }, refused: None },
            Err(error) => Self { schedule: blank(name), refused: Some(error) },
        }
    }

    /// The zone that its times are in, by its IANA name.
    pub fn timezone(self, zone: impl Into<String>) -> Self {
        self.with(|schedule| schedule.timezone = Some(zone.into()))
    }

    /// Nothing is due before this.
    pub fn start(self, at: Timestamp) -> Self {
        self.with(|schedule| schedule.start = Some(at))
    }

    /// What becomes of due times that nobody was there for.
    pub fn missed(self, missed: Missed) -> Self {
        self.with(|schedule| schedule.missed = missed)
    }

    /// How long after its due time a task may still be taken by a worker.
    pub fn lifetime(self, lifetime: Duration) -> Self {
        self.with(|schedule| schedule.lifetime = Some(Span(lifetime)))
    }

    /// Each task begins up to so much later, by chance.
    pub fn jitter(self, jitter: Duration) -> Self {
        self.with(|schedule| schedule.jitter = Some(Span(jitter)))
    }

    /// It is paused from the beginning.
    pub fn paused(self) -> Self {
        self.with(|schedule| schedule.paused = true)
    }

    /// The schedule that submits this.
    pub fn task(self, task: Spec) -> Result<Schedule, InvalidSpec> {
        if let Some(error) = self.refused {
            return Err(InvalidSpec { path: "cron".into(), reason: error.to_string() });
        }
        let schedule = Schedule { task, ..self.schedule };
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
        missed: Missed::default(),
        lifetime: None,
        jitter: None,
        paused: false,
        task: Spec::new(Target::Command(Vec::new())),
    }
}
