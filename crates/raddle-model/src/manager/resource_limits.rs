//! Upper bounds for the tasks that a manager spawns.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::spawn_policy::SpawnRefusal;
use crate::{HumanDuration, Limits, spec::InvalidSpec};

/// The limits of a manager. Each task that it spawns stays within them, and requests for more are
/// refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResourceLimits {
    /// Per task: resident memory in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Per task: CPU time, where 100 is one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Per task: open files of each process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_fds: Option<u64>,
    /// Per task: processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_procs: Option<u64>,
    /// Per task: duration of an attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<HumanDuration>,
    /// How many tasks run at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tasks: Option<u32>,
}

/// The text is not a list of limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{part}' is not a limit: write {KEYS} with a number above zero each, as memory_mb=512,timeout=30s"
)]
pub struct ParseResourceLimitsError {
    part: String,
}

const KEYS: &str = "memory_mb, cpu_percent, max_fds, max_procs, timeout or max_tasks";

/// Parses `memory_mb=512,timeout=30s`: keys and values as in JSON.
impl FromStr for ResourceLimits {
    type Err = ParseResourceLimitsError;

    fn from_str(text: &str) -> Result<Self, ParseResourceLimitsError> {
        let mut all = Map::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let wrong = || ParseResourceLimitsError { part: part.into() };
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            let value = value.trim();
            let value = value
                .parse::<u64>()
                .map_or_else(|_| Value::from(value), Value::from);
            let one = Map::from_iter([(key.trim().to_owned(), value)]);
            Self::from_map(one.clone())
                .filter(|limit| limit.validate().is_ok())
                .ok_or_else(wrong)?;
            all.extend(one);
        }
        Ok(Self::from_map(all).expect("each of them was read"))
    }
}

impl ResourceLimits {
    fn from_map(map: Map<String, Value>) -> Option<Self> {
        serde_json::from_value(map.into()).ok()
    }

    /// Returns the limits that are set, by key.
    fn to_map(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            _ => Map::new(),
        }
    }

    /// Returns whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the limits and timeout of a task: the requested ones, or the manager's where the
    /// task requests none.
    pub(super) fn apply_to_task(
        &self,
        limits: &Limits,
        timeout: Option<HumanDuration>,
    ) -> Result<(Limits, Option<HumanDuration>), SpawnRefusal> {
        narrow_limits(
            (limits, timeout),
            (&self.limits(), self.timeout),
            "this manager",
        )
    }

    /// Returns the limits of a manager that this manager spawns. They allow nothing beyond this
    /// manager's own.
    pub(super) fn narrow_for_manager(&self, asked: &Self) -> Result<Self, SpawnRefusal> {
        let (limits, timeout) = self.apply_to_task(&asked.limits(), asked.timeout)?;
        let Limits {
            memory_mb,
            cpu_percent,
            max_fds,
            max_procs,
        } = limits;
        let max_tasks = narrow_limit("max_tasks", asked.max_tasks, self.max_tasks, "this manager")?;
        Ok(Self {
            memory_mb,
            cpu_percent,
            max_fds,
            max_procs,
            timeout,
            max_tasks,
        })
    }

    fn limits(&self) -> Limits {
        let Self {
            memory_mb,
            cpu_percent,
            max_fds,
            max_procs,
            ..
        } = *self;
        Limits {
            memory_mb,
            cpu_percent,
            max_fds,
            max_procs,
        }
    }

    /// Refuses limits of zero, which would allow nothing.
    pub fn validate(&self) -> Result<(), InvalidSpec> {
        let is_zero = self.to_map().values().any(|limit| *limit == 0);
        let reason = || "a limit of zero allows nothing: give more, or leave it out".into();
        if is_zero {
            Err(InvalidSpec {
                path: "limits".into(),
                reason: reason(),
            })
        } else {
            Ok(())
        }
    }
}

/// Returns the requested limits where they are within the allowed ones, and the allowed ones where
/// none are requested. `whose` names the owner of the allowed limits in the error.
pub(super) fn narrow_limits(
    asked: (&Limits, Option<HumanDuration>),
    allowed: (&Limits, Option<HumanDuration>),
    whose: &str,
) -> Result<(Limits, Option<HumanDuration>), SpawnRefusal> {
    let ((asked, timeout), (allowed, max_timeout)) = (asked, allowed);
    let limits = Limits {
        memory_mb: narrow_limit("memory_mb", asked.memory_mb, allowed.memory_mb, whose)?,
        cpu_percent: narrow_limit("cpu_percent", asked.cpu_percent, allowed.cpu_percent, whose)?,
        max_fds: narrow_limit("max_fds", asked.max_fds, allowed.max_fds, whose)?,
        max_procs: narrow_limit("max_procs", asked.max_procs, allowed.max_procs, whose)?,
    };
    Ok((
        limits,
        narrow_limit("timeout", timeout, max_timeout, whose)?,
    ))
}

/// Applies the rule of [`narrow_limits`] to one limit.
fn narrow_limit<T: Copy + PartialOrd + fmt::Display>(
    what: &'static str,
    asked: Option<T>,
    allowed: Option<T>,
    whose: &str,
) -> Result<Option<T>, SpawnRefusal> {
    match (asked, allowed) {
        (Some(asked), Some(allowed)) if asked > allowed => Err(SpawnRefusal::Above {
            what,
            asked: asked.to_string(),
            most: allowed.to_string(),
            whose: whose.into(),
        }),
        (asked, allowed) => Ok(asked.or(allowed)),
    }
}

/// Writes the format that [`FromStr`] parses.
impl fmt::Display for ResourceLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.to_map().into_iter().map(|(key, value)| match value {
            Value::String(text) => format!("{key}={text}"),
            other => format!("{key}={other}"),
        });
        f.write_str(&parts.collect::<Vec<_>>().join(","))
    }
}
