//! The workers that live on this broker.

use std::time::Duration;

use async_trait::async_trait;
use raddle_core::{
    EventKind, Spec, Target, Tid, WorkerEntry, departure,
    worker::{Beat, WorkerInfo},
};
use std::{collections::BTreeSet, sync::Arc};

use super::{
    Memory,
    shared::{Shared, after},
    state::{Now, Place, Run, State, Worker},
};
use crate::{Heart, Leases, Registry, Result, request::Pulse};

#[async_trait]
impl Registry for Memory {
    async fn register(&self, info: WorkerInfo, ttl: Duration) -> Result<Tid> {
        Ok(self.shared.change(|state, now| state.register(info, ttl, now)))
    }

    async fn register_own(&self, info: WorkerInfo, ttl: Duration) -> Result<Tid> {
        Ok(self.shared.change(|state, now| {
            let tid = state.next_id(now);
            state.enter(tid, info, ttl, true, now);
            tid
        }))
    }

    async fn deregister(&self, worker: Tid, failure: Option<String>) -> Result<()> {
        self.shared.change(|state, now| state.deregister(worker, failure, now));
        Ok(())
    }

    async fn workers(&self) -> Result<Vec<WorkerEntry>> {
        Ok(self.shared.change(|state, now| state.entries(now)))
    }
}

impl Leases for Memory {
    fn heart(&self, worker: Tid, ttl: Duration) -> Box<dyn Heart> {
        Box::new(MemoryHeart { shared: self.shared.clone(), worker, ttl })
    }
}

/// The heart of one worker.
struct MemoryHeart {
    shared: Arc<Shared>,
    worker: Tid,
    ttl: Duration,
}

impl Heart for MemoryHeart {
    fn beat(&mut self, beat: Beat) -> Result<Pulse> {
        Ok(self.shared.change(|state, now| state.beat(self.worker, beat, self.ttl, now)))
    }
}

impl State {
    pub(super) fn register(&mut self, info: WorkerInfo, ttl: Duration, now: Now) -> Tid {
        let spec = Spec { name: Some(info.name.clone()), ..Spec::new(Target::Service(info.kind.clone())) };
        let tid = self.store(spec, info.parent, now);
        let task = self.known(tid);
        task.tally.attempt = 1;
        task.worker = Some(tid);
        let fence = task.fence(tid);
        let pid = Some(info.pid);
        self.enter(tid, info, ttl, false, now);
        let run = Run { owner: tid, running: true, claimed_at: now.wall, pid, paused: false, told: None };
        self.move_to(tid, Place::Active(run));
        self.log(fence, EventKind::Running, Some(tid), None, now);
        tid
    }

    /// Enters a worker into the registry; `own` if it is there for one task alone.
    pub(super) fn enter(&mut self, tid: Tid, info: WorkerInfo, ttl: Duration, own: bool, now: Now) {
        let worker = Worker {
            info,
            beat: Beat::default(),
            lease: after(now.mono, ttl),
            started_at: now.wall,
            active: BTreeSet::new(),
            own,
        };
        self.workers.insert(tid, worker);
    }

    fn beat(&mut self, worker: Tid, beat: Beat, ttl: Duration, now: Now) -> Pulse {
        let alive = self.workers.get_mut(&worker).filter(|worker| worker.is_alive(now));
        let is_alive = alive.is_some();
        if let Some(worker) = alive {
            worker.lease = after(now.mono, ttl);
            worker.beat = beat;
        }
        // A worker that comes too late has its own tasks taken back here with those of others.
        let reclaimed = self.reclaim(now);
        if is_alive { Pulse::Alive(reclaimed) } else { Pulse::Expired }
    }

    fn deregister(&mut self, worker: Tid, failure: Option<String>, now: Now) {
        // Whoever was taken for dead has left already.
        let Some(entry) = self.workers.get(&worker) else { return };
        for tid in entry.active.clone() {
            let (fence, run) = self.held_by_worker(tid);
            let (kind, reason) = departure::given_back_by(worker);
            self.give_back(fence, run, kind, reason, now);
        }
        self.workers.remove(&worker);
        self.end_service(worker, departure::left(failure), now);
    }

    pub(super) fn entries(&self, now: Now) -> Vec<WorkerEntry> {
        self.workers.iter().filter(|(_, worker)| worker.is_alive(now)).map(|(tid, worker)| worker.entry(*tid)).collect()
    }
}

impl Worker {
    fn entry(&self, tid: Tid) -> WorkerEntry {
        WorkerEntry::new(tid, self.info.clone(), self.beat, self.started_at)
    }
}
