//! The workers that a spawner knows of: those it has launched or taken charge of, and those it has found. No I/O, no clock.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use raddle_container::ExitKind;
use raddle_model::{
    Tid, WorkerEntry,
    worker::{WorkerInfo, kind},
};
use raddle_supervisor::ChildId;

use super::{
    launcher::{LaunchId, WorkerEvent},
    plan::WorkerCounts,
};

#[derive(Debug)]
pub(super) struct WorkerTable {
    /// What our workers are like. Those of another spawner are just like them, and left to us when that is gone.
    like: WorkerInfo,
    /// Workers that the launcher tells of.
    own: HashMap<LaunchId, WorkerRecord>,
    /// How many of those there are in each phase.
    counts: WorkerCounts,
    /// Workers that it does not tell of, and whether they are busy.
    adopted: BTreeMap<Tid, bool>,
    /// Those that were launched here, and have begun.
    launched: u64,
}

#[derive(Clone, Copy, Debug)]
struct WorkerRecord {
    /// What the core calls it.
    child: ChildId,
    tid: Option<Tid>,
    phase: WorkerPhase,
    /// Another spawner has left it.
    is_inherited: bool,
    /// Since when such a one is not in the registry.
    missing_since: Option<Duration>,
}

/// What the registry shows that was not known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RegistryDiff {
    /// Workers that another has launched.
    pub(super) found: Vec<Tid>,
    /// Of those that another has left, who is no worker any more, or never will be one.
    pub(super) strays: Vec<LaunchId>,
}

/// How long one that another spawner has left may be away from the registry: it may have to begin, or to register anew, and finds its
/// broker at once now.
const STRAY_AFTER: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug)]
enum WorkerPhase {
    Starting {
        since: Duration,
    },
    /// Another has launched it, and what it has said is yet to be heard.
    Found,
    Idle,
    Busy,
}

/// What news of a worker means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventMeaning {
    /// It was ready so long after its launch.
    Started(Duration),
    /// It has taken a task.
    Taken,
    /// There is no worker after all.
    NotLaunched,
    /// It died before it was ready.
    Stillborn(ExitKind),
    /// It is gone as it should be, or after it was ready; and whether it had a task.
    Left {
        gone: ExitKind,
        had_task: bool,
    },
    Nothing,
}

impl WorkerTable {
    pub(super) fn new(like: WorkerInfo) -> Self {
        Self {
            like,
            own: HashMap::new(),
            counts: WorkerCounts::default(),
            adopted: BTreeMap::new(),
            launched: 0,
        }
    }

    pub(super) fn launched(&mut self, id: LaunchId, child: ChildId, now: Duration) {
        self.add(
            id,
            WorkerRecord {
                child,
                tid: None,
                phase: WorkerPhase::Starting { since: now },
                is_inherited: false,
                missing_since: None,
            },
        );
    }

    /// The launcher has taken charge of one that another spawner has left.
    pub(super) fn inherited(&mut self, id: LaunchId, child: ChildId, now: Duration) {
        self.add(
            id,
            WorkerRecord {
                child,
                tid: None,
                phase: WorkerPhase::Found,
                is_inherited: true,
                missing_since: Some(now),
            },
        );
    }

    fn add(&mut self, id: LaunchId, member: WorkerRecord) {
        *member.phase.count(&mut self.counts) += 1;
        self.own.insert(id, member);
    }

    pub(super) fn hear(
        &mut self,
        id: &LaunchId,
        news: &WorkerEvent,
        now: Duration,
    ) -> EventMeaning {
        let Some(member) = self.own.get_mut(id) else {
            return EventMeaning::Nothing;
        };
        let has_begun = matches!(news, WorkerEvent::Ready(_) | WorkerEvent::Gone(_));
        self.launched +=
            u64::from(has_begun && matches!(member.phase, WorkerPhase::Starting { .. }));
        let phase = member.phase;
        match (news, phase) {
            (WorkerEvent::Ready(tid), WorkerPhase::Found | WorkerPhase::Starting { .. }) => {
                member.tid = Some(*tid);
                member.enter(WorkerPhase::Idle, &mut self.counts);
                // The registry may have been quicker.
                self.adopted.remove(tid);
                match phase {
                    WorkerPhase::Starting { since } => {
                        EventMeaning::Started(now.saturating_sub(since))
                    }
                    // How long it took is for its own spawner to know.
                    _ => EventMeaning::Nothing,
                }
            }
            (WorkerEvent::Begun, WorkerPhase::Idle) => {
                member.enter(WorkerPhase::Busy, &mut self.counts);
                EventMeaning::Taken
            }
            (WorkerEvent::Failed(_), _) => {
                self.remove(id);
                EventMeaning::NotLaunched
            }
            (WorkerEvent::Gone(gone), phase) => {
                self.remove(id);
                match phase {
                    // One that was told to leave while it started has done so.
                    WorkerPhase::Starting { .. } if *gone != ExitKind::Code(0) => {
                        EventMeaning::Stillborn(*gone)
                    }
                    phase => EventMeaning::Left {
                        gone: *gone,
                        had_task: matches!(phase, WorkerPhase::Busy),
                    },
                }
            }
            _ => EventMeaning::Nothing,
        }
    }

    fn remove(&mut self, id: &LaunchId) {
        if let Some(member) = self.own.remove(id) {
            *member.phase.count(&mut self.counts) -= 1;
        }
    }

    /// Takes note of who is registered. `alive` are the other spawners that are there, whose workers are theirs; `recognise` is the launcher's.
    pub(super) fn look_at(
        &mut self,
        registry: &[WorkerEntry],
        alive: &[Tid],
        recognise: impl Fn(&WorkerInfo) -> Option<LaunchId>,
        now: Duration,
    ) -> RegistryDiff {
        let before = std::mem::take(&mut self.adopted);
        // By what its launcher calls it: the registry knows of a worker before the worker has told us who it is. One that has gone on under
        // another id is in the registry twice, until the lease of the first has run out: the latest counts.
        let known = registry
            .iter()
            .filter_map(|entry| Some((recognise(&entry.info)?, entry)));
        let known: BTreeMap<LaunchId, &WorkerEntry> = known.collect();
        let strays = self.look_after(&known, now);
        let is_kept =
            |info: &WorkerInfo| info.parent.is_some_and(|spawner| alive.contains(&spawner));
        let is_left = |info: &WorkerInfo| self.is_like(info) && !is_kept(info);
        let others = known
            .iter()
            .filter(|(id, entry)| !self.own.contains_key(id) && is_left(&entry.info));
        self.adopted = others
            .map(|(_, entry)| (entry.tid, is_busy(entry)))
            .collect();
        let found = self
            .adopted
            .keys()
            .filter(|tid| !before.contains_key(tid))
            .copied()
            .collect();
        RegistryDiff { found, strays }
    }

    fn is_like(&self, info: &WorkerInfo) -> bool {
        let like = &self.like;
        info.kind == kind::ONE_SHOT
            && info.queues == like.queues
            && info.capabilities == like.capabilities
    }

    /// Takes note of those that another spawner has left, and returns who of them has been missing for too long.
    fn look_after(
        &mut self,
        known: &BTreeMap<LaunchId, &WorkerEntry>,
        now: Duration,
    ) -> Vec<LaunchId> {
        let mut strays = Vec::new();
        for (id, member) in self
            .own
            .iter_mut()
            .filter(|(_, member)| member.is_inherited)
        {
            if let Some(entry) = known.get(id) {
                member.missing_since = None;
                // What it has said may be lost with who heard it.
                member.tid = Some(entry.tid);
                let phase = if is_busy(entry) {
                    WorkerPhase::Busy
                } else {
                    member.phase.or_idle()
                };
                member.enter(phase, &mut self.counts);
                continue;
            }
            let since = *member.missing_since.get_or_insert(now);
            if now.saturating_sub(since) >= STRAY_AFTER {
                strays.push(id.clone());
            }
        }
        strays
    }

    pub(super) fn census(&self, pending: u64) -> WorkerCounts {
        let mut census = WorkerCounts {
            pending,
            ..self.counts
        };
        for is_busy in self.adopted.values() {
            *if *is_busy {
                &mut census.busy
            } else {
                &mut census.idle
            } += 1;
        }
        census
    }

    /// How many workers were launched.
    pub(super) fn total(&self) -> u64 {
        self.launched
    }

    /// How many there are of those that the launcher tells of.
    pub(super) fn len(&self) -> usize {
        self.own.len()
    }

    /// What the core calls one that the launcher tells of.
    pub(super) fn child(&self, id: &LaunchId) -> Option<ChildId> {
        self.own.get(id).map(|member| member.child)
    }

    /// Whether this is one that the launcher tells of.
    pub(super) fn has(&self, id: &LaunchId) -> bool {
        self.own.contains_key(id)
    }

    /// Those that were found.
    pub(super) fn adopted(&self) -> impl Iterator<Item = Tid> {
        self.adopted.keys().copied()
    }

    /// Those that would take a task.
    pub(super) fn idle(&self) -> impl Iterator<Item = Tid> {
        let own = self
            .own
            .values()
            .filter(|member| matches!(member.phase, WorkerPhase::Idle))
            .filter_map(|member| member.tid);
        own.chain(
            self.adopted
                .iter()
                .filter(|(_, is_busy)| !**is_busy)
                .map(|(tid, _)| *tid),
        )
    }

    /// All that can be spoken to.
    pub(super) fn tids(&self) -> impl Iterator<Item = Tid> {
        self.own
            .values()
            .filter_map(|member| member.tid)
            .chain(self.adopted())
    }
}

/// Whether a worker has a task, or had one.
pub(super) fn is_busy(entry: &WorkerEntry) -> bool {
    entry.load > 0.0 || entry.spawned_count > 0
}

impl WorkerRecord {
    fn enter(&mut self, phase: WorkerPhase, counts: &mut WorkerCounts) {
        *self.phase.count(counts) -= 1;
        *phase.count(counts) += 1;
        self.phase = phase;
    }
}

impl WorkerPhase {
    /// Where those in this phase are counted.
    fn count(self, counts: &mut WorkerCounts) -> &mut u32 {
        match self {
            Self::Starting { .. } | Self::Found => &mut counts.starting,
            Self::Idle => &mut counts.idle,
            Self::Busy => &mut counts.busy,
        }
    }

    /// The phase of one that is registered.
    fn or_idle(self) -> Self {
        if let Self::Found = self {
            Self::Idle
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use raddle_model::worker::WorkerStatus;

    use super::{super::launcher::process_here, *};
    use raddle_container::{LaunchError, LaunchFailure};
    use raddle_worker::worker::this_host;

    fn info(pid: u32) -> WorkerInfo {
        WorkerInfo {
            capabilities: "cpu".parse().unwrap(),
            queues: vec!["default".into()],
            concurrency: 1,
            pid,
            host: this_host(),
            ..WorkerInfo::new("warm", kind::ONE_SHOT)
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
            queue: None,
        }
    }

    fn id(pid: u32) -> LaunchId {
        LaunchId::process(pid)
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn left(gone: ExitKind, had_task: bool) -> EventMeaning {
        EventMeaning::Left { gone, had_task }
    }

    #[test]
    fn a_worker_starts_waits_works_and_leaves() {
        let mut roster = WorkerTable::new(info(0));
        roster.launched(id(7), ChildId(7), at(10));
        assert_eq!(
            (roster.child(&id(7)), roster.child(&id(8))),
            (Some(ChildId(7)), None)
        );
        assert_eq!(
            roster.census(3),
            WorkerCounts {
                pending: 3,
                starting: 1,
                ..WorkerCounts::default()
            }
        );
        assert_eq!(
            roster.hear(&id(7), &WorkerEvent::Ready(tid(1)), at(40)),
            EventMeaning::Started(at(30))
        );
        assert_eq!(
            roster.census(0),
            WorkerCounts {
                idle: 1,
                ..WorkerCounts::default()
            }
        );
        assert_eq!(
            roster.hear(&id(7), &WorkerEvent::Begun, at(50)),
            EventMeaning::Taken
        );
        assert_eq!(
            roster.hear(&id(7), &WorkerEvent::Begun, at(51)),
            EventMeaning::Nothing
        );
        assert_eq!(
            roster.census(0),
            WorkerCounts {
                busy: 1,
                ..WorkerCounts::default()
            }
        );
        assert_eq!(
            roster.hear(&id(7), &WorkerEvent::Gone(ExitKind::Code(0)), at(60)),
            left(ExitKind::Code(0), true)
        );
        assert_eq!(roster.len(), 0);
        assert_eq!(
            roster.hear(&id(7), &WorkerEvent::Begun, at(70)),
            EventMeaning::Nothing
        );
        roster.launched(id(8), ChildId(8), at(80));
        let error = LaunchError::new(LaunchFailure::Image, "there is none");
        assert_eq!(
            roster.hear(&id(8), &WorkerEvent::Failed(error), at(90)),
            EventMeaning::NotLaunched
        );
        assert_eq!(roster.len(), 0);
        assert_eq!(roster.total(), 1, "what failed was no worker");
    }

    #[test]
    fn one_that_dies_before_it_is_ready_is_told_apart() {
        let mut roster = WorkerTable::new(info(0));
        roster.launched(id(7), ChildId(7), at(0));
        assert_eq!(
            roster.hear(&id(7), &WorkerEvent::Gone(ExitKind::Code(125)), at(1)),
            EventMeaning::Stillborn(ExitKind::Code(125))
        );
        roster.launched(id(8), ChildId(8), at(0));
        assert_eq!(
            roster.hear(&id(8), &WorkerEvent::Gone(ExitKind::Code(0)), at(1)),
            left(ExitKind::Code(0), false)
        );
        roster.launched(id(9), ChildId(9), at(0));
        roster.hear(&id(9), &WorkerEvent::Ready(tid(1)), at(1));
        assert_eq!(
            roster.hear(&id(9), &WorkerEvent::Gone(ExitKind::Signal(9)), at(2)),
            left(ExitKind::Signal(9), false)
        );
    }

    #[test]
    fn who_has_the_number_of_a_worker_that_is_gone_is_not_adopted() {
        let me = std::process::id();
        let born = raddle_runner::process_start_time(me);
        assert!(born.is_some());
        let adopted = |born| {
            let mut roster = WorkerTable::new(info(0));
            let worker = entry(1, WorkerInfo { born, ..info(me) }, 0.0);
            roster
                .look_at(&[worker], &[], process_here, Duration::ZERO)
                .found
                .len()
        };
        assert_eq!(
            (adopted(born), adopted(None)),
            (1, 1),
            "it is the one that has registered, or cannot be told from it"
        );
        assert_eq!(
            adopted(born.map(|ticks| ticks - 1)),
            0,
            "another began under this number"
        );
    }

    #[test]
    fn workers_like_ours_are_adopted_and_counted_once() {
        let mut roster = WorkerTable::new(info(0));
        roster.launched(id(7), ChildId(7), at(0));
        let elsewhere = WorkerInfo {
            host: "there".into(),
            ..info(9)
        };
        let apart = WorkerInfo {
            place: Some("a container".into()),
            ..info(13)
        };
        let resident = WorkerInfo {
            kind: "resident".into(),
            ..info(10)
        };
        let other = WorkerInfo {
            capabilities: "gpu".parse().unwrap(),
            ..info(11)
        };
        let registry = [
            entry(0, info(8), 0.0),
            entry(1, info(7), 0.0),
            entry(2, info(8), 0.0),
            entry(3, info(12), 1.0),
            entry(4, elsewhere, 0.0),
            entry(5, resident, 0.0),
            entry(6, other, 0.0),
            entry(7, apart, 0.0),
        ];
        assert_eq!(
            roster.look_at(&registry, &[], process_here, at(0)).found,
            [tid(2), tid(3)]
        );
        assert_eq!(
            roster.census(0),
            WorkerCounts {
                starting: 1,
                idle: 1,
                busy: 1,
                pending: 0
            }
        );
        assert_eq!(
            roster.look_at(&registry, &[], process_here, at(0)),
            RegistryDiff::default(),
            "they are known by now"
        );
        roster.hear(&id(7), &WorkerEvent::Ready(tid(1)), at(1));
        assert_eq!(roster.tids().count(), 3);
        roster.look_at(&[], &[], process_here, at(0));
        assert_eq!(
            roster.census(0),
            WorkerCounts {
                idle: 1,
                ..WorkerCounts::default()
            }
        );
    }

    #[test]
    fn workers_of_a_spawner_that_is_there_are_its_own_until_it_is_gone() {
        let (here_too, gone) = (tid(100), tid(101));
        let of = |spawner, pid| WorkerInfo {
            parent: Some(spawner),
            ..info(pid)
        };
        let registry = [
            entry(1, of(here_too, 7), 1.0),
            entry(2, of(gone, 8), 1.0),
            entry(3, info(9), 0.0),
        ];
        let mut roster = WorkerTable::new(info(0));
        assert_eq!(
            roster
                .look_at(&registry, &[here_too], process_here, at(0))
                .found,
            [tid(2), tid(3)]
        );
        assert_eq!(
            roster.census(0),
            WorkerCounts {
                idle: 1,
                busy: 1,
                ..WorkerCounts::default()
            },
            "they fill nobody's room but theirs"
        );
        assert_eq!(
            roster.tids().collect::<Vec<_>>(),
            [tid(2), tid(3)],
            "and are told nothing"
        );
        assert_eq!(
            roster.look_at(&registry, &[], process_here, at(1)).found,
            [tid(1)]
        );
        assert_eq!(
            roster.census(0),
            WorkerCounts {
                idle: 1,
                busy: 2,
                ..WorkerCounts::default()
            }
        );
    }

    #[test]
    fn what_another_has_left_is_counted_heard_and_not_missed_for_long() {
        let mut roster = WorkerTable::new(info(0));
        roster.inherited(id(7), ChildId(7), at(0));
        roster.inherited(id(8), ChildId(8), at(0));
        assert_eq!(
            roster.census(0),
            WorkerCounts {
                starting: 2,
                ..WorkerCounts::default()
            }
        );
        let registry = [entry(1, info(7), 0.0)];
        assert_eq!(
            roster.look_at(&registry, &[], process_here, at(1000)),
            RegistryDiff::default(),
            "its launcher tells of it"
        );
        assert_eq!(
            roster.census(0),
            WorkerCounts {
                starting: 1,
                idle: 1,
                ..WorkerCounts::default()
            }
        );
        assert_eq!(
            roster.hear(&id(7), &WorkerEvent::Ready(tid(1)), at(1001)),
            EventMeaning::Nothing
        );
        assert_eq!(
            roster.hear(&id(7), &WorkerEvent::Begun, at(1002)),
            EventMeaning::Taken
        );
        assert_eq!(
            roster.census(0),
            WorkerCounts {
                starting: 1,
                busy: 1,
                ..WorkerCounts::default()
            }
        );
        assert_eq!(
            roster
                .look_at(&registry, &[], process_here, at(14_999))
                .strays,
            []
        );
        assert_eq!(
            roster
                .look_at(&registry, &[], process_here, at(15_000))
                .strays,
            [id(8)],
            "it never was there"
        );
        assert_eq!(
            roster.hear(&id(8), &WorkerEvent::Gone(ExitKind::Signal(9)), at(15_100)),
            left(ExitKind::Signal(9), false)
        );
        assert_eq!(
            roster.look_at(&[], &[], process_here, at(16_000)).strays,
            []
        );
        assert_eq!(
            roster.look_at(&[], &[], process_here, at(30_999)).strays,
            []
        );
        assert_eq!(
            roster.look_at(&[], &[], process_here, at(31_000)).strays,
            [id(7)],
            "it is not there any more"
        );
        roster.launched(id(9), ChildId(9), at(31_000));
        assert_eq!(
            roster.look_at(&[], &[], process_here, at(99_000)).strays,
            [id(7)],
            "our own are watched by their launcher"
        );
    }
}
