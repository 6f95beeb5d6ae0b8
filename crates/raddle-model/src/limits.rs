//! Resource limits of a task.

use serde::{Deserialize, Serialize};

/// Resource limits of one attempt, child processes included. An unset field means no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Resident memory of the whole process tree, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// CPU time, where 100 is one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Open files of each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_fds: Option<u64>,
    /// Processes and threads of the whole tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_procs: Option<u64>,
}

/// A limit that can end an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// [`Limits::memory_mb`]
    MemoryMb,
    /// [`Limits::max_procs`]
    MaxProcs,
}

impl Limits {
    /// Returns whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
