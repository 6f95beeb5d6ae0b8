//! A task as the routine or handler that runs it gets it.

use serde::{Deserialize, Serialize};

use crate::{Spec, Tid};

/// One attempt of a task: what a handler reads as JSON on its standard input, and a routine takes its arguments from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// The task.
    pub tid: Tid,
    /// The number of the attempt.
    pub attempt: u32,
    /// What the task is to do.
    pub spec: Spec,
}
