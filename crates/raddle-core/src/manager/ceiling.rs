//! What a manager may spawn at most.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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

/// As in `memory_mb=512,timeout=30s`: keys and values as in JSON.
impl FromStr for Ceiling {
    type Err = ParseCeilingError;

    fn from_str(text: &str) -> Result<Self, ParseCeilingError> {
        let mut all = Map::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = || ParseCeilingError { part: part.into() };
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            let value = value.trim();
            let value = value.parse::<u64>().map_or_else(|_| Value::from(value), Value::from);
            let one = Map::from_iter([(key.trim().to_owned(), value)]);
            Self::from_map(one.clone()).filter(|limit| limit.validate().is_ok()).ok_or_else(wrong)?;
            all.extend(one);
        }
        Ok(Self::from_map(all).expect("each of them was read"))
    }
}

impl Ceiling {
    fn from_map(map: Map<String, Value>) -> Option<Self> {
        serde_json::from_value(map.into()).ok()
    }

    /// What is limited, by its key.
    fn to_map(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            _ => Map::new(),
        }
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
        let is_zero = self.to_map().values().any(|limit| *limit == 0);
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
        let said = self.to_map().into_iter().map(|(key, value)| match value {
            Value::String(text) => format!("{key}={text}"),
            other => format!("{key}={other}"),
        });
        f.write_str(&said.collect::<Vec<_>>().join(","))
    }
}
