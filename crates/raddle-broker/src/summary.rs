//! Counts of tasks and messages.

use std::{borrow::Cow, collections::BTreeMap};

use jiff::Timestamp;
use raddle_model::{HumanDuration, QueueName, TaskState, Tid, spec::DEFAULT_QUEUE};
use serde::{Deserialize, Serialize};

/// The parts of a summary that require a scan of many records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SummaryDetail {
    /// Count finished tasks, by state.
    pub finished: bool,
    /// Count the tasks that could be claimed now, by kind.
    pub kinds: bool,
    /// Count stored messages, by queue.
    pub messages: bool,
    /// List batches.
    pub batches: bool,
    /// Count only the tasks of this batch by state, including finished ones.
    pub batch: Option<String>,
}

/// Counts of tasks and messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Tasks by state; finished ones only on request. Services are not counted.
    pub states: BTreeMap<TaskState, u64>,
    /// Queues that have a task record or are paused, by name.
    pub queues: BTreeMap<String, QueueSummary>,
    /// Tasks that are ready, by queue. Tasks that became due since the last claim still count as
    /// delayed, unless kinds were requested.
    pub ready: BTreeMap<String, u64>,
    /// Tasks that could be claimed now, by `kind`; the empty string for tasks without one.
    pub kinds: BTreeMap<String, WaitingTasks>,
    /// Delayed tasks.
    pub delayed: u64,
    /// Paused tasks.
    pub paused: u64,
    /// Dead letters.
    pub dead: u64,
    /// Tasks reclaimed from lost workers, since the broker was created.
    pub reclaims: u64,
    /// Writes of stale attempts that were refused, since the broker was created.
    pub stale_writes: u64,
    /// Stored messages, by queue.
    pub messages: BTreeMap<QueueName, u64>,
    /// Batches that have a task record, by name.
    pub batches: BTreeMap<String, BatchSummary>,
}

/// The tasks of one queue. Services are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSummary {
    /// Whether nothing can be claimed from it: see [`Tasks::set_queue_paused`](crate::Tasks).
    pub is_paused: bool,
    /// Tasks that are ready. As in [`Summary::ready`], tasks that became due since the last claim
    /// still count as delayed.
    pub ready: u64,
    /// Delayed tasks.
    pub delayed: u64,
    /// Tasks that were paused one by one.
    pub paused: u64,
    /// Claimed tasks whose target has not started.
    pub spawning: u64,
    /// Tasks whose target has started.
    pub running: u64,
    /// Finished tasks, by state.
    pub finished: BTreeMap<TaskState, u64>,
    /// Dead letters.
    pub dead: u64,
    /// When the oldest of the ready tasks was submitted.
    pub oldest_ready: Option<Timestamp>,
}

/// A batch: tasks that were submitted together, or under one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSummary {
    /// The number of task records.
    pub tasks: u64,
    /// When the first was submitted.
    pub since: Timestamp,
}

/// Tasks of one kind that could be claimed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingTasks {
    /// The number of tasks.
    pub tasks: u64,
    /// Since when the first could be claimed.
    pub since: Timestamp,
}

/// The most kinds that are counted separately, so that a program with one kind per task does not
/// fill the memory of its observers.
const MAX_KINDS: usize = 100;
/// The kind under which the rest is counted.
const OTHER_KINDS: &str = "other";

/// The fields of a spec that matter here. Parsing skips the rest, which may be long.
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
    /// Counts a task that could be claimed now under the kind in its stored spec. `due` is the time
    /// at which it became due, if it is still stored as delayed.
    pub fn count_kind(&mut self, tid: Tid, spec: &str, due: Option<Timestamp>) {
        // An unreadable spec fails when it is claimed; until then it waits like any other.
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
        let kind = if self.kinds.len() < MAX_KINDS || self.kinds.contains_key(kind) {
            kind
        } else {
            OTHER_KINDS
        };
        let waiting = self
            .kinds
            .entry(kind.to_owned())
            .or_insert(WaitingTasks { tasks: 0, since });
        waiting.tasks += 1;
        waiting.since = waiting.since.min(since);
    }

    /// Adds a batch of `tasks` tasks, of which `first` is the oldest.
    pub fn add_batch(&mut self, name: String, tasks: u64, first: Tid) {
        self.batches.insert(
            name,
            BatchSummary {
                tasks,
                since: submitted_at(first),
            },
        );
    }

    /// Sets the count of created tasks: ready, delayed and paused.
    pub fn sum_created(&mut self) {
        let waiting = self.ready.values().sum::<u64>() + self.delayed + self.paused;
        if waiting > 0 {
            self.states.insert(TaskState::Created, waiting);
        }
    }

    /// Sets the totals from the counts of the queues. Finished tasks are added to the states only
    /// if `finished`.
    pub fn sum_queues(&mut self, finished: bool) {
        let mut states = BTreeMap::<TaskState, u64>::new();
        for (name, queue) in &self.queues {
            let waiting = queue.ready + queue.delayed + queue.paused;
            let claimed = [
                (TaskState::Created, waiting),
                (TaskState::Spawning, queue.spawning),
                (TaskState::Running, queue.running),
            ];
            let ended = queue.finished.iter().filter(|_| finished);
            for (state, tasks) in claimed
                .into_iter()
                .chain(ended.map(|(state, tasks)| (*state, *tasks)))
                .filter(|(_, tasks)| *tasks > 0)
            {
                *states.entry(state).or_default() += tasks;
            }
            if queue.ready > 0 {
                self.ready.insert(name.clone(), queue.ready);
            }
            self.delayed += queue.delayed;
            self.paused += queue.paused;
            self.dead += queue.dead;
        }
        self.states = states;
    }
}

/// When a task could first be claimed. A later attempt counts from then too.
fn ready_at(tid: Tid, delay: Option<HumanDuration>, run_at: Option<Timestamp>) -> Timestamp {
    let submitted = submitted_at(tid);
    let delayed = delay
        .and_then(|delay| submitted.checked_add(delay.0).ok())
        .unwrap_or(submitted);
    run_at.unwrap_or(delayed).max(submitted)
}

pub(crate) fn submitted_at(tid: Tid) -> Timestamp {
    Timestamp::from_nanosecond(tid.unix_nanos().into()).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use raddle_model::TaskSpec;

    use super::*;

    fn add(summary: &mut Summary, n: u64, spec: &TaskSpec) {
        summary.count_kind(tid(n), &serde_json::to_string(spec).unwrap(), None);
    }

    fn tid(number: u64) -> Tid {
        Tid::from_u64(1_700_000_000_000_000_000 + number).unwrap()
    }

    #[test]
    fn counts_stored_specs_by_kind() {
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
        summary.count_kind(tid(9), "no spec", None);
        assert_eq!(summary.kinds[""].tasks, 3);
    }

    #[test]
    fn limits_the_number_of_kinds() {
        let mut summary = Summary::default();
        for n in 0..10 * MAX_KINDS as u64 {
            let spec = TaskSpec {
                kind: Some(n.to_string()),
                ..TaskSpec::command(["x"])
            };
            add(&mut summary, n, &spec);
        }
        assert_eq!(summary.kinds.len(), MAX_KINDS + 1);
        assert_eq!(summary.kinds[OTHER_KINDS].tasks, 9 * MAX_KINDS as u64);
    }
}
