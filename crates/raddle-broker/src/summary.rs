//! How many tasks and messages there are.

use std::{borrow::Cow, collections::BTreeMap};

use jiff::Timestamp;
use raddle_model::{HumanDuration, QueueName, TaskState, Tid, spec::DEFAULT_QUEUE};
use serde::{Deserialize, Serialize};

/// What a summary is to have that takes a walk through many records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryDetail {
    /// Finished tasks, by state.
    pub finished: bool,
    /// Tasks that could be claimed now, by kind.
    pub kinds: bool,
    /// Stored messages, by queue.
    pub messages: bool,
    /// Which batches there are.
    pub batches: bool,
    /// The tasks of this batch by state, finished ones among them, and nothing else.
    pub batch: Option<String>,
}

/// How many tasks and messages there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Tasks by state; finished ones only if they were asked for. Services are not counted.
    pub states: BTreeMap<TaskState, u64>,
    /// Ready to be claimed, by queue. Those whose time has come since the last claim are still in `delayed`, unless kinds were asked for.
    pub ready: BTreeMap<String, u64>,
    /// Tasks that could be claimed now, by their `kind`; those without one have the empty one.
    pub kinds: BTreeMap<String, WaitingTasks>,
    /// Waiting for their time.
    pub delayed: u64,
    /// Held back on request.
    pub paused: u64,
    /// In the dead-letter queue.
    pub dead: u64,
    /// Tasks that were taken back from workers that were gone, since the broker was made.
    pub reclaims: u64,
    /// Writes that were refused because they came from a lost attempt, since the broker was made.
    pub stale_writes: u64,
    /// Stored messages, by queue.
    pub messages: BTreeMap<QueueName, u64>,
    /// Batches of which a task is known, by name.
    pub batches: BTreeMap<String, BatchSummary>,
}

/// Tasks that were submitted together, or under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSummary {
    /// How many are known.
    pub tasks: u64,
    /// When the first of them was submitted.
    pub since: Timestamp,
}

/// Tasks of one kind that could be claimed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingTasks {
    /// How many.
    pub tasks: u64,
    /// Since when the first of them could be claimed.
    pub since: Timestamp,
}

/// How many different kinds are told apart. Labels are for people to tell tasks apart; one for each task must not fill the memory of those who watch.
const TOLD_APART: usize = 100;
/// Where the rest is counted.
const THE_REST: &str = "other";

/// What of a spec matters here. The rest, which may be long, is passed over.
#[derive(Deserialize)]
struct SpecBrief<'a> {
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    queue: Option<Cow<'a, str>>,
    #[serde(default)]
    delay: Option<HumanDuration>,
    #[serde(default)]
    run_at: Option<Timestamp>,
}

impl Summary {
    /// Counts a task that could be claimed now by its kind, which is in its spec as that is stored. `due` is when its time came, if it is still among those that
    /// are delayed.
    pub fn add_written(&mut self, tid: Tid, spec: &str, due: Option<Timestamp>) {
        // One that cannot be read fails when it is claimed; it waits like any other.
        let nothing = SpecBrief {
            kind: None,
            queue: None,
            delay: None,
            run_at: None,
        };
        let SpecBrief {
            kind,
            queue,
            delay,
            run_at,
        } = serde_json::from_str(spec).unwrap_or(nothing);
        if due.is_some() {
            self.delayed = self.delayed.saturating_sub(1);
            *self
                .ready
                .entry(queue.as_deref().unwrap_or(DEFAULT_QUEUE).to_owned())
                .or_default() += 1;
        }
        let since = due.unwrap_or_else(|| ready_at(tid, delay, run_at));
        let kind = kind.as_deref().unwrap_or_default();
        let kind = if self.kinds.len() < TOLD_APART || self.kinds.contains_key(kind) {
            kind
        } else {
            THE_REST
        };
        let waiting = self
            .kinds
            .entry(kind.to_owned())
            .or_insert(WaitingTasks { tasks: 0, since });
        waiting.tasks += 1;
        waiting.since = waiting.since.min(since);
    }

    /// Adds a batch of so many tasks, of which this is the first.
    pub fn add_batch(&mut self, name: String, tasks: u64, first: Tid) {
        self.batches.insert(
            name,
            BatchSummary {
                tasks,
                since: submitted_at(first),
            },
        );
    }

    /// Adds up the tasks that wait.
    pub fn add_created(&mut self) {
        let waiting = self.ready.values().sum::<u64>() + self.delayed + self.paused;
        if waiting > 0 {
            self.states.insert(TaskState::Created, waiting);
        }
    }
}

/// When a task could first be claimed. A later attempt may have waited since then.
fn ready_at(tid: Tid, delay: Option<HumanDuration>, run_at: Option<Timestamp>) -> Timestamp {
    let submitted = submitted_at(tid);
    let delayed = delay
        .and_then(|delay| submitted.checked_add(delay.0).ok())
        .unwrap_or(submitted);
    run_at.unwrap_or(delayed).max(submitted)
}

fn submitted_at(tid: Tid) -> Timestamp {
    Timestamp::from_nanosecond(tid.unix_nanos().into()).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use raddle_model::TaskSpec;

    use super::*;

    fn add(summary: &mut Summary, n: u64, spec: &TaskSpec) {
        summary.add_written(tid(n), &serde_json::to_string(spec).unwrap(), None);
    }

    fn tid(number: u64) -> Tid {
        Tid::from_u64(1_700_000_000_000_000_000 + number).unwrap()
    }

    #[test]
    fn specs_are_counted_as_they_are_written() {
        let specs = [
            TaskSpec::command(["true"]),
            TaskSpec {
                kind: Some("a\"b\u{e4}".into()),
                queue: "mail".into(),
                ..TaskSpec::command(["x"])
            },
            TaskSpec {
                kind: Some("late".into()),
                delay: Some(HumanDuration::secs(5)),
                ..TaskSpec::command(["x"])
            },
            TaskSpec {
                kwargs: [("kind".to_owned(), "not this".into())]
                    .into_iter()
                    .collect(),
                ..TaskSpec::command(["x"])
            },
        ];
        let mut summary = Summary::default();
        specs
            .iter()
            .zip(0..)
            .for_each(|(spec, n)| add(&mut summary, n, spec));
        let kinds: Vec<&str> = summary.kinds.keys().map(String::as_str).collect();
        assert_eq!(kinds, ["", "a\"b\u{e4}", "late"]);
        assert_eq!(
            (summary.kinds[""].tasks, summary.kinds["late"].tasks),
            (2, 1)
        );
        let since = |kind: &str| summary.kinds[kind].since.as_nanosecond() as u64;
        assert_eq!(
            (since(""), since("late")),
            (tid(0).unix_nanos(), tid(2).unix_nanos() + 5_000_000_000)
        );
        summary.add_written(tid(9), "no spec", None);
        assert_eq!(summary.kinds[""].tasks, 3);
    }

    #[test]
    fn no_more_kinds_are_told_apart_than_people_could() {
        let mut summary = Summary::default();
        for n in 0..10 * TOLD_APART as u64 {
            let spec = TaskSpec {
                kind: Some(n.to_string()),
                ..TaskSpec::command(["x"])
            };
            add(&mut summary, n, &spec);
        }
        assert_eq!(summary.kinds.len(), TOLD_APART + 1);
        assert_eq!(summary.kinds[THE_REST].tasks, 9 * TOLD_APART as u64);
    }
}
