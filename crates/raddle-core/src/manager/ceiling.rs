//! What a manager may spawn at most.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::charter::Refusal;
use crate::{Limits, Span, spec::InvalidSpec};

/// The limits of a manager: no task that it spawns is given more, and what asks for more is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceiling {
    /// For each task: its resident memory, in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// For each task: processor time, where 100 is one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// For each task: open files of each process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_fds: Option<u64>,
    /// For each task: processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_procs: Option<u64>,
    /// For each task: how long an attempt may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// How many tasks run at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tasks: Option<u32>,
}

/// The text does not say what the limits of a manager are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{part}' is not a limit: write {KEYS} with a number above zero each, as memory_mb=512,timeout=30s")]
pub struct ParseCeilingError {
    part: String,
}

const KEYS: &str = "memory_mb, cpu_percent, max_fds, max_procs, timeout or max_tasks";

/// As in `memory_mb=512,timeout=30s`.
impl FromStr for Ceiling {
    type Err = ParseCeilingError;

    fn from_str(text: &str) -> Result<Self, ParseCeilingError> {
        let mut ceiling = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            ceiling.read(part).ok_or_else(|| ParseCeilingError { part: part.into() })?;
        }
        Ok(ceiling)
    }
}

impl Ceiling {
    fn read(&mut self, part: &str) -> Option<()> {
        let (key, value) = part.split_once('=')?;
        let value = value.trim();
        fn number<T: FromStr + PartialEq + Default>(value: &str) -> Option<Option<T>> {
            value.parse().ok().filter(|number| *number != T::default()).map(Some)
        }
        match key.trim() {
            "memory_mb" => self.memory_mb = number(value)?,
            "cpu_percent" => self.cpu_percent = number(value)?,
            "max_fds" => self.max_fds = number(value)?,
            "max_procs" => self.max_procs = number(value)?,
            "timeout" => self.timeout = number::<Span>(value)?,
            "max_tasks" => self.max_tasks = number(value)?,
            _ => return None,
        }
        Some(())
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What a task is given that asks for `limits` and `timeout`: that, and the ceiling where it asks for nothing.
    pub(super) fn bound(&self, limits: &Limits, timeout: Option<Span>) -> Result<(Limits, Option<Span>), Refusal> {
        within((limits, timeout), (&self.limits(), self.timeout), "this manager")
    }

    /// The ceiling of a manager that this one's manager spawns: it allows nothing that this one does not.
    pub(super) fn below(&self, asked: &Self) -> Result<Self, Refusal> {
        let (limits, timeout) = self.bound(&asked.limits(), asked.timeout)?;
        let Limits { memory_mb, cpu_percent, max_fds, max_procs } = limits;
        let max_tasks = under("max_tasks", asked.max_tasks, self.max_tasks, "this manager")?;
        Ok(Self { memory_mb, cpu_percent, max_fds, max_procs, timeout, max_tasks })
    }

    fn limits(&self) -> Limits {
        let Self { memory_mb, cpu_percent, max_fds, max_procs, .. } = *self;
        Limits { memory_mb, cpu_percent, max_fds, max_procs }
    }

    /// Refuses what would allow nothing.
    pub fn validate(&self) -> Result<(), InvalidSpec> {
        let is_zero = self.memory_mb == Some(0)
            || self.cpu_percent == Some(0)
            || self.max_fds == Some(0)
            || self.max_procs == Some(0)
            || self.timeout.is_some_and(|timeout| timeout.0.is_zero())
            || self.max_tasks == Some(0);
        let reason = || "a limit of zero allows nothing: give more, or leave it out".into();
        if is_zero { Err(InvalidSpec { path: "limits".into(), reason: reason() }) } else { Ok(()) }
    }
}

/// What is asked for, where that is no more than is allowed, and what is allowed where nothing is asked for.
pub(super) fn within(
    asked: (&Limits, Option<Span>),
    most: (&Limits, Option<Span>),
    whose: &str,
) -> Result<(Limits, Option<Span>), Refusal> {
    let ((asked, timeout), (most, longest)) = (asked, most);
    let limits = Limits {
        memory_mb: under("memory_mb", asked.memory_mb, most.memory_mb, whose)?,
        cpu_percent: under("cpu_percent", asked.cpu_percent, most.cpu_percent, whose)?,
        max_fds: under("max_fds", asked.max_fds, most.max_fds, whose)?,
        max_procs: under("max_procs", asked.max_procs, most.max_procs, whose)?,
    };
    Ok((limits, under("timeout", timeout, longest, whose)?))
}

/// The same, of one limit.
fn under<T: Copy + PartialOrd + fmt::Display>(
    what: &'static str,
    asked: Option<T>,
    most: Option<T>,
    whose: &str,
) -> Result<Option<T>, Refusal> {
    match (asked, most) {
        (Some(asked), Some(most)) if asked > most => {
            Err(Refusal::Above { what, asked: asked.to_string(), most: most.to_string(), whose: whose.into() })
        }
        (asked, most) => Ok(asked.or(most)),
    }
}

/// As it is read.
impl fmt::Display for Ceiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory_mb, cpu_percent, max_fds, max_procs, timeout, max_tasks } = self;
        let said = [
            ("memory_mb", memory_mb.map(|n| n.to_string())),
            ("cpu_percent", cpu_percent.map(|n| n.to_string())),
            ("max_fds", max_fds.map(|n| n.to_string())),
            ("max_procs", max_procs.map(|n| n.to_string())),
            ("timeout", timeout.map(|span| span.0.as_secs_f64().to_string())),
            ("max_tasks", max_tasks.map(|n| n.to_string())),
        ];
        let said = said.into_iter().filter_map(|(key, value)| Some((key, value?)));
        for (i, (key, value)) in said.enumerate() {
            write!(f, "{}{key}={value}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}
