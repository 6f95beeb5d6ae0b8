//! `WorkerTable`: the workers that a spawner knows, launched, adopted or found. No I/O, no clock.

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
    /// The registry info of its workers. Workers of a dead spawner that register the same are
    /// adopted.
    template: WorkerInfo,
    /// Workers that the launcher reports.
    reported: HashMap<LaunchId, WorkerRecord>,
    /// Their numbers by phase.
    counts: WorkerCounts,
    /// Workers that it does not report, and whether they are busy.
    found: BTreeMap<Tid, bool>,
    /// Workers that were launched here and have started.
    launched: u64,
}

#[derive(Clone, Copy, Debug)]
struct WorkerRecord {
    /// Its id in the supervisor.
    child: ChildId,
    tid: Option<Tid>,
    phase: WorkerPhase,
    /// A dead spawner has left it.
    is_adopted: bool,
    /// Since when an adopted worker is not registered.
    missing_since: Option<Duration>,
}

/// Changes that a read of the registry shows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RegistryDiff {
    /// Workers that another spawner has launched.
    pub(super) found: Vec<Tid>,
    /// Adopted workers that are not registered and never will be.
    pub(super) strays: Vec<LaunchId>,
}

/// How long an adopted worker may be missing from the registry: it may be starting or registering
/// again, and reaches its broker at once now.
const MAX_MISSING: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug)]
enum WorkerPhase {
    Starting {
        since: Duration,
    },
    /// Adopted, and its output was not read yet.
    Adopted,
    Idle,
    Busy,
}

/// The meaning of a worker's event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventMeaning {
    /// It was ready this long after its launch.
    Started(Duration),
    /// It has claimed a task.
    TaskClaimed,
    /// Its launch failed.
    NotLaunched,
    /// It died before it was ready.
    FailedStart(ExitKind),
    /// It has ended, with or without a task.
    Exited {
        gone: ExitKind,
        had_task: bool,
    },
    Nothing,
}

impl WorkerTable {
    pub(super) fn new(template: WorkerInfo) -> Self {
        Self {
            template,
            reported: HashMap::new(),
            counts: WorkerCounts::default(),
            found: BTreeMap::new(),
            launched: 0,
        }
    }

    pub(super) fn add_launched(&mut self, id: LaunchId, child: ChildId, now: Duration) {
        self.add(
            id,
            WorkerRecord {
                child,
                tid: None,
                phase: WorkerPhase::Starting { since: now },
                is_adopted: false,
                missing_since: None,
            },
        );
    }

    /// Adds a worker that the launcher has adopted.
    pub(super) fn add_adopted(&mut self, id: LaunchId, child: ChildId, now: Duration) {
        self.add(
            id,
            WorkerRecord {
                child,
                tid: None,
                phase: WorkerPhase::Adopted,
                is_adopted: true,
                missing_since: Some(now),
            },
        );
    }

    fn add(&mut self, id: LaunchId, worker: WorkerRecord) {
        *worker.phase.counter(&mut self.counts) += 1;
        self.reported.insert(id, worker);
    }

    pub(super) fn apply_event(
        &mut self,
        id: &LaunchId,
        event: &WorkerEvent,
        now: Duration,
    ) -> EventMeaning {
        let Some(worker) = self.reported.get_mut(id) else {
            return EventMeaning::Nothing;
        };
        let has_begun = matches!(event, WorkerEvent::Ready(_) | WorkerEvent::Exited(_));
        self.launched +=
            u64::from(has_begun && matches!(worker.phase, WorkerPhase::Starting { .. }));
        let phase = worker.phase;
        match (event, phase) {
            (WorkerEvent::Ready(tid), WorkerPhase::Adopted | WorkerPhase::Starting { .. }) => {
                worker.tid = Some(*tid);
                worker.set_phase(WorkerPhase::Idle, &mut self.counts);
                // The registry may have shown it first.
                self.found.remove(tid);
                match phase {
                    WorkerPhase::Starting { since } => {
                        EventMeaning::Started(now.saturating_sub(since))
                    }
                    // Only its own spawner knows when it was launched.
                    _ => EventMeaning::Nothing,
                }
            }
            (WorkerEvent::TaskClaimed, WorkerPhase::Idle) => {
                worker.set_phase(WorkerPhase::Busy, &mut self.counts);
                EventMeaning::TaskClaimed
            }
            (WorkerEvent::Failed(_), _) => {
                self.remove(id);
                EventMeaning::NotLaunched
            }
            (WorkerEvent::Exited(gone), phase) => {
                self.remove(id);
                match phase {
                    // A worker that was stopped while it started exits with 0.
                    WorkerPhase::Starting { .. } if *gone != ExitKind::Code(0) => {
                        EventMeaning::FailedStart(*gone)
                    }
                    phase => EventMeaning::Exited {
                        gone: *gone,
                        had_task: matches!(phase, WorkerPhase::Busy),
                    },
                }
            }
            _ => EventMeaning::Nothing,
        }
    }

    fn remove(&mut self, id: &LaunchId) {
        if let Some(worker) = self.reported.remove(id) {
            *worker.phase.counter(&mut self.counts) -= 1;
        }
    }

    /// Applies a read of the registry. `alive` are the other live spawners, whose workers are
    /// theirs. `recognise` is the launcher's.
    pub(super) fn apply_registry(
        &mut self,
        registry: &[WorkerEntry],
        alive: &[Tid],
        recognise: impl Fn(&WorkerInfo) -> Option<LaunchId>,
        now: Duration,
    ) -> RegistryDiff {
        let before = std::mem::take(&mut self.found);
        // By launch id, because the registry may show a worker before it reports its id. A worker
        // that has registered again appears twice until its old lease expires: the latest entry
        // counts.
        let known = registry
            .iter()
            .filter_map(|entry| Some((recognise(&entry.info)?, entry)));
        let known: BTreeMap<LaunchId, &WorkerEntry> = known.collect();
        let strays = self.update_adopted(&known, now);
        let is_kept =
            |info: &WorkerInfo| info.parent.is_some_and(|spawner| alive.contains(&spawner));
        let is_left = |info: &WorkerInfo| self.is_similar(info) && !is_kept(info);
        let others = known
            .iter()
            .filter(|(id, entry)| !self.reported.contains_key(id) && is_left(&entry.info));
        self.found = others
            .map(|(_, entry)| (entry.tid, is_busy(entry)))
            .collect();
        let found = self
            .found
            .keys()
            .filter(|tid| !before.contains_key(tid))
            .copied()
            .collect();
        RegistryDiff { found, strays }
    }

    fn is_similar(&self, info: &WorkerInfo) -> bool {
        let template = &self.template;
        info.kind == kind::ONE_SHOT
            && info.queues == template.queues
            && info.capabilities == template.capabilities
    }

    /// Updates adopted workers, and returns those that were missing for too long.
    fn update_adopted(
        &mut self,
        known: &BTreeMap<LaunchId, &WorkerEntry>,
        now: Duration,
    ) -> Vec<LaunchId> {
        let mut strays = Vec::new();
        for (id, worker) in self
            .reported
            .iter_mut()
            .filter(|(_, worker)| worker.is_adopted)
        {
            if let Some(entry) = known.get(id) {
                worker.missing_since = None;
                // Its report may be lost with its old spawner.
                worker.tid = Some(entry.tid);
                let phase = if is_busy(entry) {
                    WorkerPhase::Busy
                } else {
                    worker.phase.or_idle()
                };
                worker.set_phase(phase, &mut self.counts);
                continue;
            }
            let since = *worker.missing_since.get_or_insert(now);
            if now.saturating_sub(since) >= MAX_MISSING {
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
        for is_busy in self.found.values() {
            *if *is_busy {
                &mut census.busy
            } else {
                &mut census.idle
            } += 1;
        }
        census
    }

    /// Workers launched so far.
    pub(super) fn launched_total(&self) -> u64 {
        self.launched
    }

    /// Workers that the launcher reports.
    pub(super) fn len(&self) -> usize {
        self.reported.len()
    }

    /// The supervisor's id of a worker that the launcher reports.
    pub(super) fn child(&self, id: &LaunchId) -> Option<ChildId> {
        self.reported.get(id).map(|worker| worker.child)
    }

    /// Whether the launcher reports this worker.
    pub(super) fn has(&self, id: &LaunchId) -> bool {
        self.reported.contains_key(id)
    }

    /// Workers that were found in the registry.
    pub(super) fn found(&self) -> impl Iterator<Item = Tid> {
        self.found.keys().copied()
    }

    /// Workers that would take a task.
    pub(super) fn idle(&self) -> impl Iterator<Item = Tid> {
        let reported = self
            .reported
            .values()
            .filter(|worker| matches!(worker.phase, WorkerPhase::Idle))
            .filter_map(|worker| worker.tid);
        reported.chain(
            self.found
                .iter()
                .filter(|(_, is_busy)| !**is_busy)
                .map(|(tid, _)| *tid),
        )
    }

    /// All workers with a known id.
    pub(super) fn tids(&self) -> impl Iterator<Item = Tid> {
        self.reported
            .values()
            .filter_map(|worker| worker.tid)
            .chain(self.found())
    }
}

/// Whether a worker has or had a task.
pub(super) fn is_busy(entry: &WorkerEntry) -> bool {
    entry.load > 0.0 || entry.spawned_count > 0
}

impl WorkerRecord {
    fn set_phase(&mut self, phase: WorkerPhase, counts: &mut WorkerCounts) {
        *self.phase.counter(counts) -= 1;
        *phase.counter(counts) += 1;
        self.phase = phase;
    }
}

impl WorkerPhase {
    /// The counter of this phase.
    fn counter(self, counts: &mut WorkerCounts) -> &mut u32 {
        match self {
            Self::Starting { .. } | Self::Adopted => &mut counts.starting,
            Self::Idle => &mut counts.idle,
            Self::Busy => &mut counts.busy,
        }
    }

    /// The phase of a registered worker.
    fn or_idle(self) -> Self {
        if let Self::Adopted = self {
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

    use super::{super::launcher::recognise_process, *};
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

    fn after_millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn exited(gone: ExitKind, had_task: bool) -> EventMeaning {
        EventMeaning::Exited { gone, had_task }
    }

    #[test]
    fn a_worker_starts_waits_works_and_exits() {
        let mut workers = WorkerTable::new(info(0));
        workers.add_launched(id(7), ChildId(7), after_millis(10));
        assert_eq!(
            (workers.child(&id(7)), workers.child(&id(8))),
            (Some(ChildId(7)), None)
        );
        assert_eq!(
            workers.census(3),
            WorkerCounts {
                pending: 3,
                starting: 1,
                ..WorkerCounts::default()
            }
        );
        assert_eq!(
            workers.apply_event(&id(7), &WorkerEvent::Ready(tid(1)), after_millis(40)),
            EventMeaning::Started(after_millis(30))
        );
        assert_eq!(
            workers.census(0),
            WorkerCounts {
                idle: 1,
                ..WorkerCounts::default()
            }
        );
        assert_eq!(
            workers.apply_event(&id(7), &WorkerEvent::TaskClaimed, after_millis(50)),
            EventMeaning::TaskClaimed
        );
        assert_eq!(
            workers.apply_event(&id(7), &WorkerEvent::TaskClaimed, after_millis(51)),
            EventMeaning::Nothing
        );
        assert_eq!(
            workers.census(0),
            WorkerCounts {
                busy: 1,
                ..WorkerCounts::default()
            }
        );
        assert_eq!(
            workers.apply_event(
                &id(7),
                &WorkerEvent::Exited(ExitKind::Code(0)),
                after_millis(60)
            ),
            exited(ExitKind::Code(0), true)
        );
        assert_eq!(workers.len(), 0);
        assert_eq!(
            workers.apply_event(&id(7), &WorkerEvent::TaskClaimed, after_millis(70)),
            EventMeaning::Nothing
        );
        workers.add_launched(id(8), ChildId(8), after_millis(80));
        let error = LaunchError::new(LaunchFailure::Image, "there is none");
        assert_eq!(
            workers.apply_event(&id(8), &WorkerEvent::Failed(error), after_millis(90)),
            EventMeaning::NotLaunched
        );
        assert_eq!(workers.len(), 0);
        assert_eq!(workers.launched_total(), 1, "a failed launch is no worker");
    }

    #[test]
    fn distinguishes_a_death_before_readiness() {
        let mut workers = WorkerTable::new(info(0));
        workers.add_launched(id(7), ChildId(7), after_millis(0));
        assert_eq!(
            workers.apply_event(
                &id(7),
                &WorkerEvent::Exited(ExitKind::Code(125)),
                after_millis(1)
            ),
            EventMeaning::FailedStart(ExitKind::Code(125))
        );
        workers.add_launched(id(8), ChildId(8), after_millis(0));
        assert_eq!(
            workers.apply_event(
                &id(8),
                &WorkerEvent::Exited(ExitKind::Code(0)),
                after_millis(1)
            ),
            exited(ExitKind::Code(0), false)
        );
        workers.add_launched(id(9), ChildId(9), after_millis(0));
        workers.apply_event(&id(9), &WorkerEvent::Ready(tid(1)), after_millis(1));
        assert_eq!(
            workers.apply_event(
                &id(9),
                &WorkerEvent::Exited(ExitKind::Signal(9)),
                after_millis(2)
            ),
            exited(ExitKind::Signal(9), false)
        );
    }

    #[test]
    fn does_not_adopt_a_process_with_a_reused_pid() {
        let me = std::process::id();
        let born = raddle_runner::process_start_time(me);
        assert!(born.is_some());
        let adopted = |born| {
            let mut workers = WorkerTable::new(info(0));
            let worker = entry(1, WorkerInfo { born, ..info(me) }, 0.0);
            workers
                .apply_registry(&[worker], &[], recognise_process, Duration::ZERO)
                .found
                .len()
        };
        assert_eq!(
            (adopted(born), adopted(None)),
            (1, 1),
            "it is the registered process, or cannot be distinguished from it"
        );
        assert_eq!(
            adopted(born.map(|ticks| ticks - 1)),
            0,
            "another process has this PID"
        );
    }

    #[test]
    fn adopts_similar_workers_and_counts_them_once() {
        let mut workers = WorkerTable::new(info(0));
        workers.add_launched(id(7), ChildId(7), after_millis(0));
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
            workers
                .apply_registry(&registry, &[], recognise_process, after_millis(0))
                .found,
            [tid(2), tid(3)]
        );
        assert_eq!(
            workers.census(0),
            WorkerCounts {
                starting: 1,
                idle: 1,
                busy: 1,
                pending: 0
            }
        );
        assert_eq!(
            workers.apply_registry(&registry, &[], recognise_process, after_millis(0)),
            RegistryDiff::default(),
            "they are known by now"
        );
        workers.apply_event(&id(7), &WorkerEvent::Ready(tid(1)), after_millis(1));
        assert_eq!(workers.tids().count(), 3);
        workers.apply_registry(&[], &[], recognise_process, after_millis(0));
        assert_eq!(
            workers.census(0),
            WorkerCounts {
                idle: 1,
                ..WorkerCounts::default()
            }
        );
    }

    #[test]
    fn workers_of_a_live_spawner_are_not_adopted() {
        let (alive, gone) = (tid(100), tid(101));
        let of = |spawner, pid| WorkerInfo {
            parent: Some(spawner),
            ..info(pid)
        };
        let registry = [
            entry(1, of(alive, 7), 1.0),
            entry(2, of(gone, 8), 1.0),
            entry(3, info(9), 0.0),
        ];
        let mut workers = WorkerTable::new(info(0));
        assert_eq!(
            workers
                .apply_registry(&registry, &[alive], recognise_process, after_millis(0))
                .found,
            [tid(2), tid(3)]
        );
        assert_eq!(
            workers.census(0),
            WorkerCounts {
                idle: 1,
                busy: 1,
                ..WorkerCounts::default()
            },
            "they do not count"
        );
        assert_eq!(
            workers.tids().collect::<Vec<_>>(),
            [tid(2), tid(3)],
            "and get no commands"
        );
        assert_eq!(
            workers
                .apply_registry(&registry, &[], recognise_process, after_millis(1))
                .found,
            [tid(1)]
        );
        assert_eq!(
            workers.census(0),
            WorkerCounts {
                idle: 1,
                busy: 2,
                ..WorkerCounts::default()
            }
        );
    }

    #[test]
    fn counts_adopted_workers_and_drops_missing_ones() {
        let mut workers = WorkerTable::new(info(0));
        workers.add_adopted(id(7), ChildId(7), after_millis(0));
        workers.add_adopted(id(8), ChildId(8), after_millis(0));
        assert_eq!(
            workers.census(0),
            WorkerCounts {
                starting: 2,
                ..WorkerCounts::default()
            }
        );
        let registry = [entry(1, info(7), 0.0)];
        assert_eq!(
            workers.apply_registry(&registry, &[], recognise_process, after_millis(1000)),
            RegistryDiff::default(),
            "its launcher reports it"
        );
        assert_eq!(
            workers.census(0),
            WorkerCounts {
                starting: 1,
                idle: 1,
                ..WorkerCounts::default()
            }
        );
        assert_eq!(
            workers.apply_event(&id(7), &WorkerEvent::Ready(tid(1)), after_millis(1001)),
            EventMeaning::Nothing
        );
        assert_eq!(
            workers.apply_event(&id(7), &WorkerEvent::TaskClaimed, after_millis(1002)),
            EventMeaning::TaskClaimed
        );
        assert_eq!(
            workers.census(0),
            WorkerCounts {
                starting: 1,
                busy: 1,
                ..WorkerCounts::default()
            }
        );
        assert_eq!(
            workers
                .apply_registry(&registry, &[], recognise_process, after_millis(14_999))
                .strays,
            []
        );
        assert_eq!(
            workers
                .apply_registry(&registry, &[], recognise_process, after_millis(15_000))
                .strays,
            [id(8)],
            "it never was registered"
        );
        assert_eq!(
            workers.apply_event(
                &id(8),
                &WorkerEvent::Exited(ExitKind::Signal(9)),
                after_millis(15_100)
            ),
            exited(ExitKind::Signal(9), false)
        );
        assert_eq!(
            workers
                .apply_registry(&[], &[], recognise_process, after_millis(16_000))
                .strays,
            []
        );
        assert_eq!(
            workers
                .apply_registry(&[], &[], recognise_process, after_millis(30_999))
                .strays,
            []
        );
        assert_eq!(
            workers
                .apply_registry(&[], &[], recognise_process, after_millis(31_000))
                .strays,
            [id(7)],
            "it is not registered any more"
        );
        workers.add_launched(id(9), ChildId(9), after_millis(31_000));
        assert_eq!(
            workers
                .apply_registry(&[], &[], recognise_process, after_millis(99_000))
                .strays,
            [id(7)],
            "the launcher reports its own workers"
        );
    }
}
