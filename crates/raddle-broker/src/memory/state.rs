//! What the broker holds. Every task is in exactly one [`Place`], and [`State::move_to`] is the only way to another.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

use jiff::Timestamp;
use raddle_core::{
    Event, EventKind, Progress, QueueName, Report, Spec, State as TaskState, Tally, Tid, TidClock, Word,
    queue_name::Port,
    worker::{Beat, WorkerInfo},
};
use tokio::time::Instant;

use super::{
    chain::Chained,
    ready::{Partition, Ready},
    shared::after,
};
use crate::{ScheduleView, request::Fence};

/// Everything a broker knows.
pub(super) struct State {
    clock: TidClock,
    pub(super) tasks: BTreeMap<Tid, Task>,
    pub(super) ready: Ready,
    pub(super) delayed: BTreeSet<(Instant, Tid)>,
    pub(super) workers: BTreeMap<Tid, Worker>,
    /// Unique keys of unfinished tasks.
    pub(super) unique: HashMap<String, Tid>,
    pub(super) queues: BTreeMap<QueueName, BTreeMap<Tid, String>>,
    /// All but the `created` events, which their tasks stand for.
    pub(super) events: BTreeMap<Tid, Event>,
    /// Standard output and error of each attempt that wrote any.
    pub(super) output: BTreeMap<Fence, [Vec<u8>; 2]>,
    pub(super) schedules: BTreeMap<String, ScheduleView>,
    /// Tasks that expire, and when, in nanoseconds since the epoch. Some may have been taken, or be over, by now.
    pub(super) expiring: BTreeSet<(i64, Tid)>,
    pub(super) stale_writes: u64,
    /// Tasks that were taken back from workers that were gone.
    pub(super) reclaims: u64,
    pub(super) wake: Wake,
}

/// One task.
pub(super) struct Task {
    pub(super) spec: Spec,
    pub(super) partition: Partition,
    pub(super) parent: Option<Tid>,
    pub(super) created_at: Timestamp,
    pub(super) tally: Tally,
    pub(super) place: Place,
    /// The worker that has it, or had it last.
    pub(super) worker: Option<Tid>,
    /// How far its present attempt says that it has come.
    pub(super) progress: Option<Progress>,
    /// What its present attempt has chained.
    pub(super) chained: Chained,
    /// Its entries in the log.
    pub(super) events: Vec<Tid>,
}

/// Where a task is.
pub(super) enum Place {
    /// Among those that can be claimed.
    Ready,
    /// Among those that wait for their time.
    Delayed(Due),
    /// Held back on request; due then, if it was delayed.
    Held(Option<Due>),
    /// With a worker.
    Active(Run),
    /// Over.
    Done(Box<End>),
}

/// A time on both clocks: leases and delays follow the one that never jumps, people read the other.
#[derive(Clone, Copy)]
pub(super) struct Due {
    pub(super) due: Instant,
    pub(super) at: Timestamp,
}

/// An attempt in progress.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) owner: Tid,
    /// Whether its target has begun.
    pub(super) running: bool,
    pub(super) claimed_at: Timestamp,
    pub(super) pid: Option<u32>,
    /// Whether its worker has been told to let it stand still.
    pub(super) paused: bool,
    /// The word by which its worker is to end it, once it has heard of that.
    pub(super) told: Option<Word>,
}

/// How a task ended.
pub(super) struct End {
    pub(super) state: TaskState,
    pub(super) dead: bool,
    pub(super) report: Report,
    pub(super) when: Now,
}

/// A registered worker.
pub(super) struct Worker {
    pub(super) info: WorkerInfo,
    pub(super) beat: Beat,
    /// It counts as alive before this.
    pub(super) lease: Instant,
    pub(super) started_at: Timestamp,
    /// What it has claimed.
    pub(super) active: BTreeSet<Tid>,
    /// The task that it is there for alone. Such a worker is no task itself.
    pub(super) own: bool,
}

/// One moment on both clocks.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) wall: Timestamp,
    pub(super) mono: Instant,
}

/// Whom a change concerns.
#[derive(Default)]
pub(super) struct Wake {
    pub(super) ready: bool,
    pub(super) controls: bool,
    pub(super) messages: bool,
    pub(super) progress: bool,
    pub(super) agenda: bool,
}

impl State {
    /// The next id.
    pub(super) fn next_id(&mut self, now: Now) -> Tid {
        self.clock.next(u64::try_from(now.wall.as_nanosecond()).unwrap_or(0))
    }

    /// A task that is known to be there because an index led to it.
    pub(super) fn known(&mut self, tid: Tid) -> &mut Task {
        self.tasks.get_mut(&tid).expect("indexes name only tasks that are stored")
    }

    /// Takes a task out of where it is and puts it elsewhere, with all that depends on it.
    pub(super) fn move_to(&mut self, tid: Tid, place: Place) {
        let task = self.tasks.get_mut(&tid).expect("only stored tasks are moved");
        match &task.place {
            Place::Ready => self.ready.remove(&task.partition, task.spec.priority, tid),
            Place::Delayed(due) => _ = self.delayed.remove(&(due.due, tid)),
            Place::Active(run) => {
                if let Some(worker) = self.workers.get_mut(&run.owner) {
                    worker.active.remove(&tid);
                }
            }
            Place::Held(_) | Place::Done(_) => {}
        }
        match &place {
            Place::Ready => {
                self.ready.insert(&task.partition, task.spec.priority, tid);
                self.wake.ready = true;
            }
            Place::Delayed(due) => {
                self.delayed.insert((due.due, tid));
                // Claims that wait have to learn of the new time.
                self.wake.ready = true;
            }
            // A worker's own task is not among those it has claimed.
            Place::Active(run) if run.owner != tid => {
                if let Some(worker) = self.workers.get_mut(&run.owner) {
                    worker.active.insert(tid);
                }
            }
            Place::Done(_) => {
                if let Some(key) = &task.spec.unique_key {
                    self.unique.remove(key);
                }
                self.queues.remove(&QueueName::Task(tid, Port::CtrlIn));
            }
            Place::Active(_) | Place::Held(_) => {}
        }
        // What an attempt has chained goes with it, unless it was taken before.
        if !matches!(place, Place::Active(_)) {
            task.chained = Chained::default();
        }
        task.place = place;
    }

    /// Lets a task wait until `due`, or for nothing but a worker.
    pub(super) fn line_up(&mut self, tid: Tid, due: Option<Due>, now: Now) {
        let place = match due.filter(|due| due.due > now.mono) {
            Some(due) => Place::Delayed(due),
            None => Place::Ready,
        };
        self.move_to(tid, place);
    }

    /// Makes delayed tasks ready whose time has come.
    pub(super) fn promote(&mut self, now: Now) {
        while let Some(&(due, tid)) = self.delayed.first()
            && due <= now.mono
        {
            self.move_to(tid, Place::Ready);
        }
    }

    /// When the next delayed task becomes ready.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|&(due, _)| due)
    }

    /// The run of an attempt, as long as it is the latest and not over. Services end by leaving the registry alone.
    pub(super) fn active(&self, fence: Fence) -> Option<Run> {
        let task = self.tasks.get(&fence.tid).filter(|task| task.tally.attempt == fence.attempt)?;
        match task.place {
            Place::Active(run) if !task.spec.is_service() => Some(run),
            _ => None,
        }
    }

    /// The attempt of a task that is known to be with a worker because that worker's list led to it.
    pub(super) fn held_by_worker(&mut self, tid: Tid) -> (Fence, Run) {
        let fence = self.known(tid).fence(tid);
        (fence, self.active(fence).expect("workers have only tasks that are active"))
    }

    /// Adds an entry to the log.
    pub(super) fn log(
        &mut self,
        fence: Fence,
        event: EventKind,
        worker: Option<Tid>,
        detail: Option<String>,
        now: Now,
    ) {
        let id = self.next_id(now);
        let Fence { tid, attempt } = fence;
        self.known(tid).events.push(id);
        self.events.insert(id, Event { id, tid, event, at: now.wall, attempt, worker, detail });
        self.wake.progress = true;
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            clock: TidClock::resume(0),
            tasks: BTreeMap::new(),
            ready: Ready::default(),
            delayed: BTreeSet::new(),
            workers: BTreeMap::new(),
            unique: HashMap::new(),
            queues: BTreeMap::new(),
            events: BTreeMap::new(),
            output: BTreeMap::new(),
            schedules: BTreeMap::new(),
            expiring: BTreeSet::new(),
            stale_writes: 0,
            reclaims: 0,
            wake: Wake::default(),
        }
    }
}

impl Task {
    /// Where it stands, in the words of the task model.
    pub(super) fn state(&self) -> TaskState {
        match &self.place {
            Place::Ready | Place::Delayed(_) | Place::Held(_) => TaskState::Created,
            Place::Active(run) if run.running => TaskState::Running,
            Place::Active(_) => TaskState::Spawning,
            Place::Done(end) => end.state,
        }
    }

    /// Its latest attempt.
    pub(super) fn fence(&self, tid: Tid) -> Fence {
        Fence { tid, attempt: self.tally.attempt }
    }
}

impl Now {
    pub(super) fn read() -> Self {
        Self { wall: Timestamp::now(), mono: Instant::now() }
    }

    /// The moment `span` from now.
    pub(super) fn plus(self, span: std::time::Duration) -> Due {
        Due { due: after(self.mono, span), at: self.wall.checked_add(span).unwrap_or(Timestamp::MAX) }
    }

    /// The moment that the wall clock will show `at`, unless that is past.
    pub(super) fn until(self, at: Timestamp) -> Option<Due> {
        let span = std::time::Duration::try_from(at.duration_since(self.wall)).ok()?;
        Some(Due { due: after(self.mono, span), at })
    }
}

/// Where the ids after `after` begin, which need not be an id itself.
pub(super) fn behind(after: u64) -> Bound<Tid> {
    Tid::from_u64(after.min(i64::MAX as u64)).map_or(Bound::Unbounded, Bound::Excluded)
}
