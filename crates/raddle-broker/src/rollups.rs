//! Outcomes of tasks by minute and name, for charts and for names that fail often.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use raddle_model::{AttemptReport, TaskSpec, TaskState, Tid, spec::StartTime, time};
use serde::{Deserialize, Serialize};

/// The most names that are counted separately in a minute.
pub const MAX_NAMES: usize = 200;
/// The name under which the rest is counted.
pub const OTHER_NAMES: &str = "other";
/// How long rollups are kept.
pub const ROLLUPS_KEPT: Duration = Duration::from_secs(72 * 3600);
/// The most rollups that one call returns, except that a minute is never split.
pub const MAX_ROLLUPS: usize = 10_000;

/// The upper bounds of the buckets of a [`Histogram`], in milliseconds: 1 ms to 14 hours. A further
/// bucket holds what is longer.
pub const BUCKET_BOUNDS_MS: [u64; 24] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 20_000_000, 50_000_000,
];

/// Durations in fixed buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram {
    /// The number of durations by bucket, without the empty buckets at the end.
    counts: Vec<u64>,
}

/// The outcomes of the tasks of one name in one minute. Tasks are counted in the minute of the
/// event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeRollup {
    /// The beginning of the minute.
    pub minute: Timestamp,
    /// The display name of the tasks, or [`OTHER_NAMES`].
    pub name: String,
    /// The counts.
    #[serde(flatten)]
    pub outcomes: Outcomes,
}

/// Counts of outcomes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcomes {
    /// Tasks submitted.
    #[serde(skip_serializing_if = "is_zero")]
    pub submitted: u64,
    /// Tasks that completed.
    #[serde(skip_serializing_if = "is_zero")]
    pub completed: u64,
    /// Tasks that failed.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// Tasks that ran past their timeout.
    #[serde(skip_serializing_if = "is_zero")]
    pub timeout: u64,
    /// Tasks that were cancelled.
    #[serde(skip_serializing_if = "is_zero")]
    pub cancelled: u64,
    /// Tasks that were killed.
    #[serde(skip_serializing_if = "is_zero")]
    pub killed: u64,
    /// Attempts that failed and were followed by another.
    #[serde(skip_serializing_if = "is_zero")]
    pub retried: u64,
    /// How long tasks could have been claimed before their first attempt.
    #[serde(skip_serializing_if = "Histogram::is_empty")]
    pub wait: Histogram,
    /// How long final attempts ran.
    #[serde(skip_serializing_if = "Histogram::is_empty")]
    pub run: Histogram,
}

/// One thing to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeEvent {
    /// A task was submitted.
    Submitted,
    /// A first attempt was claimed, so long after it could have been.
    Claimed(Duration),
    /// A task has ended, after its final attempt ran for so long if it ran.
    Finished(TaskState, Option<Duration>),
    /// An attempt failed and another follows.
    Retried,
}

/// Counts that are not stored yet, by minute since the epoch and name.
#[derive(Debug, Default)]
pub struct PendingRollups(BTreeMap<i64, BTreeMap<String, Outcomes>>);

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde calls"
)]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Histogram {
    /// The bucket of a duration.
    pub fn bucket(duration: Duration) -> usize {
        let micros = duration.as_micros();
        BUCKET_BOUNDS_MS.partition_point(|bound| u128::from(*bound) * 1000 < micros)
    }

    /// A histogram with these counts by bucket.
    pub fn from_counts(counts: impl IntoIterator<Item = (usize, u64)>) -> Self {
        let mut histogram = Self::default();
        for (bucket, count) in counts {
            histogram.add_to(bucket, count);
        }
        histogram
    }

    /// Adds a duration.
    pub fn add(&mut self, duration: Duration) {
        self.add_to(Self::bucket(duration), 1);
    }

    /// Adds all durations of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in other.counts.iter().enumerate() {
            self.add_to(bucket, *count);
        }
    }

    fn add_to(&mut self, bucket: usize, count: u64) {
        let bucket = bucket.min(BUCKET_BOUNDS_MS.len());
        if count > 0 && self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        if count > 0 {
            self.counts[bucket] += count;
        }
    }

    /// Whether it holds no duration.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The number of durations by bucket, without the empty buckets at the end.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The upper bound of the bucket that holds this share of the durations, from the shortest;
    /// `None` if there are none. Longer ones than the last bound count as that bound.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = (share.clamp(0.0, 1.0) * self.count() as f64)
            .ceil()
            .max(1.0) as u64;
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(Duration::from_millis(
            BUCKET_BOUNDS_MS[bucket.min(BUCKET_BOUNDS_MS.len() - 1)],
        ))
    }
}

impl Outcomes {
    /// Counts one event.
    pub fn count(&mut self, event: OutcomeEvent) {
        match event {
            OutcomeEvent::Submitted => self.submitted += 1,
            OutcomeEvent::Claimed(wait) => self.wait.add(wait),
            OutcomeEvent::Retried => self.retried += 1,
            OutcomeEvent::Finished(state, run) => {
                match state {
                    TaskState::Completed => self.completed += 1,
                    TaskState::Timeout => self.timeout += 1,
                    TaskState::Cancelled => self.cancelled += 1,
                    TaskState::Killed => self.killed += 1,
                    _ => self.failed += 1,
                }
                if let Some(run) = run {
                    self.run.add(run);
                }
            }
        }
    }

    /// Adds the counts of another rollup.
    pub fn merge(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.completed += other.completed;
        self.failed += other.failed;
        self.timeout += other.timeout;
        self.cancelled += other.cancelled;
        self.killed += other.killed;
        self.retried += other.retried;
        self.wait.merge(&other.wait);
        self.run.merge(&other.run);
    }

    /// The number of tasks that ended.
    pub fn finished(&self) -> u64 {
        self.completed + self.failed + self.timeout + self.cancelled + self.killed
    }
}

impl PendingRollups {
    /// Counts an event of a task called `name` at this time, in nanoseconds since the epoch.
    pub fn count(&mut self, unix_nanos: i64, name: &str, event: OutcomeEvent) {
        let names = self.0.entry(minute_of(unix_nanos)).or_default();
        if let Some(outcomes) = names.get_mut(name) {
            return outcomes.count(event);
        }
        let name = if names.len() < MAX_NAMES {
            name
        } else {
            OTHER_NAMES
        };
        names.entry(name.to_owned()).or_default().count(event);
    }

    /// Adds the counts of another collection.
    pub fn merge(&mut self, other: Self) {
        for (minute, names) in other.0 {
            let known = self.0.entry(minute).or_default();
            for (name, outcomes) in names {
                let name = if known.len() < MAX_NAMES || known.contains_key(&name) {
                    name
                } else {
                    OTHER_NAMES.to_owned()
                };
                known.entry(name).or_default().merge(&outcomes);
            }
        }
    }

    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all counts: the minute since the epoch, the name, and what to add.
    pub fn take(&mut self) -> impl Iterator<Item = (i64, String, Outcomes)> + use<> {
        std::mem::take(&mut self.0)
            .into_iter()
            .flat_map(|(minute, names)| {
                names
                    .into_iter()
                    .map(move |(name, outcomes)| (minute, name, outcomes))
            })
    }
}

/// How long a task could have been claimed before its first attempt was, at `now` in nanoseconds
/// since the epoch.
pub fn first_wait(tid: Tid, spec: &TaskSpec, now: i64) -> Duration {
    let submitted = tid.as_i64();
    let since = match spec.start() {
        None => submitted,
        Some(StartTime::After(delay)) => time::nanos_after(submitted, delay),
        Some(StartTime::At(at)) => time::unix_nanos(at).max(submitted),
    };
    Duration::from_nanos(u64::try_from(now.saturating_sub(since)).unwrap_or(0))
}

/// How long an attempt ran; `None` if it did not.
pub fn run_time(report: &AttemptReport) -> Option<Duration> {
    let began = time::unix_nanos(report.started_at?);
    let ran = time::unix_nanos(report.ended_at).saturating_sub(began);
    Some(Duration::from_nanos(u64::try_from(ran).unwrap_or(0)))
}

/// The minute since the epoch of a time in nanoseconds.
pub fn minute_of(unix_nanos: i64) -> i64 {
    unix_nanos.div_euclid(60_000_000_000)
}

/// The beginning of a minute since the epoch.
pub fn minute_start(minute: i64) -> Timestamp {
    Timestamp::from_second(minute.saturating_mul(60)).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_durations_into_buckets() {
        for (micros, bucket) in [(0, 0), (1000, 0), (1001, 1), (5000, 2), (5001, 3)] {
            assert_eq!(Histogram::bucket(Duration::from_micros(micros)), bucket);
        }
        let days = Duration::from_secs(1_000_000);
        assert_eq!(Histogram::bucket(days), BUCKET_BOUNDS_MS.len());
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        for millis in [1, 3, 3, 40, 10_000_000_000] {
            histogram.add(Duration::from_millis(millis));
        }
        let quantile = |share| histogram.quantile(share).unwrap().as_millis();
        assert_eq!((quantile(0.0), quantile(0.5)), (1, 5));
        assert_eq!((quantile(0.8), quantile(1.0)), (50, 50_000_000));
    }

    #[test]
    fn limits_the_number_of_names_in_a_minute() {
        let mut pending = PendingRollups::default();
        for n in 0..MAX_NAMES + 50 {
            pending.count(0, &n.to_string(), OutcomeEvent::Submitted);
        }
        let taken: Vec<_> = pending.take().collect();
        assert_eq!(taken.len(), MAX_NAMES + 1);
        let other = taken.iter().find(|(_, name, _)| name == OTHER_NAMES);
        assert_eq!(other.unwrap().2.submitted, 50);
        assert!(pending.is_empty());
    }
}
