//! What waits for workers and what they have, for those who watch a broker from outside. What is over is left out: there may be millions of
//! it, and who asks often must not pay for that.

use std::{borrow::Cow, collections::BTreeMap};

use jiff::Timestamp;
use raddle_core::{Span, Tid, spec::DEFAULT_QUEUE};
use serde::{Deserialize, Serialize};

/// What waits for workers, and what they have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Tasks that could be claimed now, by their `kind`; those without one have the empty one.
    pub kinds: BTreeMap<String, Waiting>,
    /// The same tasks by queue.
    pub queues: BTreeMap<String, u64>,
    /// Tasks whose time has not come.
    pub delayed: u64,
    /// Tasks that are held back on request.
    pub paused: u64,
    /// Tasks that workers have.
    pub active: u64,
    /// Tasks in the dead-letter queue.
    pub dead: u64,
    /// Tasks that were taken back from workers that were gone, since the broker was made.
    pub reclaims: u64,
    /// Writes that were refused because they came from a lost attempt, since the broker was made.
    pub stale_writes: u64,
}

/// Tasks of one kind that could be claimed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// How many.
    pub tasks: u64,
    /// Since when the first of them could be claimed.
    pub since: Timestamp,
}

/// How many different kinds and queues are told apart. Labels are for people to tell tasks apart; who gives each task its own must not fill
/// the memory of those who watch.
pub(crate) const TOLD_APART: usize = 100;
/// Where the rest is counted.
pub(crate) const THE_REST: &str = "other";

/// What of a spec matters here. The rest, which may be long, is passed over.
#[derive(Deserialize)]
struct Brief<'a> {
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    queue: Option<Cow<'a, str>>,
    #[serde(default)]
    delay: Option<Span>,
    #[serde(default)]
    run_at: Option<Timestamp>,
}

impl Demand {
    /// Counts a task that could be claimed now, by its spec as it is stored. `due` is when its time came, if that was waited for.
    pub(crate) fn add_written(&mut self, tid: Tid, spec: &str, due: Option<Timestamp>) {
        // One that cannot be read fails when it is claimed; it waits like any other.
        let nothing = Brief { kind: None, queue: None, delay: None, run_at: None };
        let Brief { kind, queue, delay, run_at } = serde_json::from_str(spec).unwrap_or(nothing);
        let due = due.unwrap_or_else(|| ready_at(tid, delay, run_at));
        self.add(kind.as_deref(), queue.as_deref().unwrap_or(DEFAULT_QUEUE), due);
    }

    fn add(&mut self, kind: Option<&str>, queue: &str, since: Timestamp) {
        let first = Waiting { tasks: 0, since };
        let waiting = told_apart(&mut self.kinds, kind.unwrap_or_default(), first);
        waiting.tasks += 1;
        waiting.since = waiting.since.min(since);
        *told_apart(&mut self.queues, queue, 0) += 1;
    }
}

fn told_apart<'a, T>(map: &'a mut BTreeMap<String, T>, label: &str, first: T) -> &'a mut T {
    let label = if map.len() < TOLD_APART || map.contains_key(label) { label } else { THE_REST };
    map.entry(label.to_owned()).or_insert(first)
}

/// When a task could first be claimed. A later attempt may have waited since then.
fn ready_at(tid: Tid, delay: Option<Span>, run_at: Option<Timestamp>) -> Timestamp {
    let submitted = Timestamp::from_nanosecond(tid.unix_nanos().into()).unwrap_or(Timestamp::MIN);
    let delayed = delay.and_then(|delay| submitted.checked_add(delay.0).ok()).unwrap_or(submitted);
    run_at.unwrap_or(delayed).max(submitted)
}

#[cfg(test)]
mod tests {
    use raddle_core::Spec;

    use super::*;

    fn add(demand: &mut Demand, n: u64, spec: &Spec) {
        demand.add_written(tid(n), &serde_json::to_string(spec).unwrap(), None);
    }

    fn tid(number: u64) -> Tid {
        Tid::from_u64(1_700_000_000_000_000_000 + number).unwrap()
    }

    #[test]
    fn specs_are_counted_as_they_are_written() {
        let specs = [
            Spec::command(["true"]),
            Spec { kind: Some("a\"b\u{e4}".into()), queue: "mail".into(), ..Spec::command(["x"]) },
            Spec { kind: Some("late".into()), delay: Some(Span::secs(5)), ..Spec::command(["x"]) },
            Spec { kwargs: [("kind".to_owned(), "not this".into())].into_iter().collect(), ..Spec::command(["x"]) },
        ];
        let mut demand = Demand::default();
        specs.iter().zip(0..).for_each(|(spec, n)| add(&mut demand, n, spec));
        let kinds: Vec<&str> = demand.kinds.keys().map(String::as_str).collect();
        assert_eq!(kinds, ["", "a\"b\u{e4}", "late"]);
        assert_eq!((demand.kinds[""].tasks, demand.queues["default"], demand.queues["mail"]), (2, 3, 1));
        let since = |kind: &str| demand.kinds[kind].since.as_nanosecond() as u64;
        assert_eq!((since(""), since("late")), (tid(0).unix_nanos(), tid(2).unix_nanos() + 5_000_000_000));
        demand.add_written(tid(9), "no spec", None);
        assert_eq!(demand.kinds[""].tasks, 3);
    }

    #[test]
    fn no_more_kinds_are_told_apart_than_people_could() {
        let mut demand = Demand::default();
        for n in 0..10 * TOLD_APART as u64 {
            let spec = Spec { kind: Some(n.to_string()), queue: format!("q{n}"), ..Spec::command(["x"]) };
            add(&mut demand, n, &spec);
        }
        assert_eq!((demand.kinds.len(), demand.queues.len()), (TOLD_APART + 1, TOLD_APART + 1));
        assert_eq!(demand.kinds[THE_REST].tasks, 9 * TOLD_APART as u64);
    }
}
