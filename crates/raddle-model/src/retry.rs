//! The retry policy of a task.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{HumanDuration, Tid, jitter::unit_interval};

/// How often a task is attempted, and how long to wait in between.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetryPolicy {
    /// How many attempts may fail before the task does. 1 means no retry.
    pub attempts: u32,
    /// How the pause grows.
    pub backoff: BackoffCurve,
    /// The first pause.
    pub base: HumanDuration,
    /// The longest pause.
    pub max: HumanDuration,
    /// The share of each pause that is random, 0 to 1, so that tasks that failed together do not
    /// return together.
    pub jitter: f64,
}

/// How the pause between attempts grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackoffCurve {
    /// Always `base`.
    Constant,
    /// `base` times the number of failures.
    Linear,
    /// `base`, doubled with every failure.
    #[default]
    Exponential,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 1,
            backoff: BackoffCurve::default(),
            base: HumanDuration::secs(1),
            max: HumanDuration::secs(300),
            jitter: 0.1,
        }
    }
}

impl RetryPolicy {
    /// Returns the pause before the attempt that follows the `failures`-th failure (counted from
    /// 1).
    ///
    /// The jitter derives from the task id and the count, so that the same history gives the same
    /// plan.
    pub fn pause(&self, failures: u32, tid: Tid) -> Duration {
        let nth = failures.max(1);
        let factor = match self.backoff {
            BackoffCurve::Constant => 1.0,
            BackoffCurve::Linear => f64::from(nth),
            BackoffCurve::Exponential => 2f64.powi(nth.min(64) as i32 - 1),
        };
        let full = (self.base.0.as_secs_f64() * factor).min(self.max.0.as_secs_f64());
        let spread =
            self.jitter.clamp(0.0, 1.0) * unit_interval(tid.as_u64() ^ (u64::from(nth) << 48));
        // Only a `base` and `max` beyond what a user can write overflow a `Duration`.
        Duration::try_from_secs_f64(full * (1.0 - spread)).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests;
