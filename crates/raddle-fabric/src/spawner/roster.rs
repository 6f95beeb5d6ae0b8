//! The workers that a spawner knows of: those it has launched, and those it has found. No I/O, no clock.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use raddle_core::{Tid, WorkerEntry, worker::WorkerInfo};

use super::{
    launcher::{Gone, Id, News},
    plan::Census,
};
use crate::worker::ONE_SHOT;

#[derive(Debug)]
pub(super) struct Roster {
    /// What our workers are like. Those of another spawner that was killed are just like them.
    like: WorkerInfo,
    own: HashMap<Id, Member>,
    /// Workers that nobody of this process has launched, and whether they are busy.
    adopted: BTreeMap<Tid, bool>,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    tid: Option<Tid>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Starting { since: Duration },
    Idle,
    Busy,
}

/// What news of a worker means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It was ready so long after its launch.
    Started(Duration),
    /// It has taken a task.
    Taken,
    /// It died before it was ready.
    Stillborn(Gone),
    /// It is gone as it should be, or after it was ready; and whether it had a task.
    Left {
        gone: Gone,
        had_task: bool,
    },
    Nothing,
}

impl Roster {
    pub(super) fn new(like: WorkerInfo) -> Self {
        Self { like, own: HashMap::new(), adopted: BTreeMap::new() }
    }

    pub(super) fn launched(&mut self, id: Id, now: Duration) {
        self.own.insert(id, Member { tid: None, phase: Phase::Starting { since: now } });
    }

    pub(super) fn hear(&mut self, id: Id, news: &News, now: Duration) -> Meaning {
        let Some(member) = self.own.get_mut(&id) else { return Meaning::Nothing };
        match (news, member.phase) {
            (News::Ready(tid), Phase::Starting { since }) => {
                *member = Member { tid: Some(*tid), phase: Phase::Idle };
                // The registry may have been quicker.
                self.adopted.remove(tid);
                Meaning::Started(now.saturating_sub(since))
            }
            (News::Begun, Phase::Idle) => {
                member.phase = Phase::Busy;
                Meaning::Taken
            }
            (News::Gone(gone), phase) => {
                self.own.remove(&id);
                match phase {
                    // One that was told to leave while it started has done so.
                    Phase::Starting { .. } if *gone != Gone::Code(0) => Meaning::Stillborn(*gone),
                    phase => Meaning::Left { gone: *gone, had_task: matches!(phase, Phase::Busy) },
                }
            }
            _ => Meaning::Nothing,
        }
    }

    /// Takes note of who is registered. Returns who was not known before.
    pub(super) fn look_at(&mut self, registry: &[WorkerEntry]) -> Vec<Tid> {
        let before = std::mem::take(&mut self.adopted);
        let is_like = |info: &WorkerInfo| {
            let like = &self.like;
            info.kind == ONE_SHOT
                && info.host == like.host
                && info.queues == like.queues
                && info.capabilities == like.capabilities
        };
        // By its process: the registry knows of a worker before the worker has told us who it is.
        let others = registry.iter().filter(|entry| is_like(&entry.info) && !self.own.contains_key(&entry.info.pid));
        // One that has gone on under another id is in the registry twice, until the lease of the first has run out.
        let latest: BTreeMap<u32, &WorkerEntry> = others.map(|entry| (entry.info.pid, entry)).collect();
        let is_busy = |entry: &WorkerEntry| entry.load > 0.0 || entry.spawned_count > 0;
        self.adopted = latest.into_values().map(|entry| (entry.tid, is_busy(entry))).collect();
        self.adopted.keys().filter(|tid| !before.contains_key(tid)).copied().collect()
    }

    pub(super) fn census(&self, pending: u64) -> Census {
        let mut census = Census { pending, ..Census::default() };
        for member in self.own.values() {
            match member.phase {
                Phase::Starting { .. } => census.starting += 1,
                Phase::Idle => census.idle += 1,
                Phase::Busy => census.busy += 1,
            }
        }
        for is_busy in self.adopted.values() {
            *if *is_busy { &mut census.busy } else { &mut census.idle } += 1;
        }
        census
    }

    /// Whether none of those that were launched here is left.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Those that were found.
    pub(super) fn adopted(&self) -> impl Iterator<Item = Tid> {
        self.adopted.keys().copied()
    }

    /// All that can be spoken to.
    pub(super) fn tids(&self) -> impl Iterator<Item = Tid> {
        self.own.values().filter_map(|member| member.tid).chain(self.adopted())
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use raddle_core::worker::WorkerStatus;

    use super::*;

    fn info(pid: u32) -> WorkerInfo {
        WorkerInfo {
            name: "warm".into(),
            kind: ONE_SHOT.into(),
            capabilities: "cpu".parse().unwrap(),
            queues: vec!["default".into()],
            concurrency: 1,
            pid,
            host: "here".into(),
        }
    }

    fn tid(number: u64) -> Tid {
        Tid::from_u64(1_700_000_000_000_000_000 + number).unwrap()
    }

    fn entry(number: u64, info: WorkerInfo, load: f64) -> WorkerEntry {
        WorkerEntry {
            tid: tid(number),
            info,
            status: WorkerStatus::Active,
            load,
            spawned_count: 0,
            started_at: Timestamp::UNIX_EPOCH,
            queue: String::new(),
        }
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn left(gone: Gone, had_task: bool) -> Meaning {
        Meaning::Left { gone, had_task }
    }

    #[test]
    fn a_worker_starts_waits_works_and_leaves() {
        let mut roster = Roster::new(info(0));
        roster.launched(7, at(10));
        assert_eq!(roster.census(3), Census { pending: 3, starting: 1, ..Census::default() });
        assert_eq!(roster.hear(7, &News::Ready(tid(1)), at(40)), Meaning::Started(at(30)));
        assert_eq!(roster.census(0), Census { idle: 1, ..Census::default() });
        assert_eq!(roster.hear(7, &News::Begun, at(50)), Meaning::Taken);
        assert_eq!(roster.hear(7, &News::Begun, at(51)), Meaning::Nothing);
        assert_eq!(roster.census(0), Census { busy: 1, ..Census::default() });
        assert_eq!(roster.hear(7, &News::Gone(Gone::Code(0)), at(60)), left(Gone::Code(0), true));
        assert!(roster.is_empty());
        assert_eq!(roster.hear(7, &News::Begun, at(70)), Meaning::Nothing);
    }

    #[test]
    fn one_that_dies_before_it_is_ready_is_told_apart() {
        let mut roster = Roster::new(info(0));
        roster.launched(7, at(0));
        assert_eq!(roster.hear(7, &News::Gone(Gone::Code(125)), at(1)), Meaning::Stillborn(Gone::Code(125)));
        roster.launched(8, at(0));
        assert_eq!(roster.hear(8, &News::Gone(Gone::Code(0)), at(1)), left(Gone::Code(0), false));
        roster.launched(9, at(0));
        roster.hear(9, &News::Ready(tid(1)), at(1));
        assert_eq!(roster.hear(9, &News::Gone(Gone::Signal(9)), at(2)), left(Gone::Signal(9), false));
    }

    #[test]
    fn workers_like_ours_are_adopted_and_counted_once() {
        let mut roster = Roster::new(info(0));
        roster.launched(7, at(0));
        let elsewhere = WorkerInfo { host: "there".into(), ..info(9) };
        let resident = WorkerInfo { kind: "resident".into(), ..info(10) };
        let other = WorkerInfo { capabilities: "gpu".parse().unwrap(), ..info(11) };
        let registry = [
            entry(0, info(8), 0.0),
            entry(1, info(7), 0.0),
            entry(2, info(8), 0.0),
            entry(3, info(12), 1.0),
            entry(4, elsewhere, 0.0),
            entry(5, resident, 0.0),
            entry(6, other, 0.0),
        ];
        assert_eq!(roster.look_at(&registry), [tid(2), tid(3)]);
        assert_eq!(roster.census(0), Census { starting: 1, idle: 1, busy: 1, pending: 0 });
        assert_eq!(roster.look_at(&registry), [], "they are known by now");
        roster.hear(7, &News::Ready(tid(1)), at(1));
        assert_eq!(roster.tids().count(), 3);
        roster.look_at(&[]);
        assert_eq!(roster.census(0), Census { idle: 1, ..Census::default() });
    }
}
