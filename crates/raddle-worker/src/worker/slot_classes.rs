//! The slots of a worker by what runs in them: fresh processes, and the hosts of each program.
//! Decisions only.
//!
//! A worker claims tasks of all kinds at once and cannot know which come. It claims as many as its
//! process slots take, and more for hosts as long as such tasks come: the window doubles with each
//! claim that brings them, and closes when a claim brings none.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use raddle_broker::LeasedTask;
use raddle_model::{
    CapSet, Target, TaskSpec,
    host::RoutineKind,
    spec::{Isolation, routine_tag},
};

use super::Options;
use crate::{
    host::{HostOptions, HostProgram},
    plugins::Plugins,
};

/// How many tasks for hosts are claimed before it is known whether any come.
const FIRST_WINDOW: usize = 16;
/// How long a closed window stays closed while no process slot is free.
const WINDOW_PAUSE: Duration = Duration::from_secs(5);

/// Which slots a task may have: 0 for processes, then two for each program with hosts.
type ClassId = usize;
const PROCESS: ClassId = 0;

pub(super) struct SlotClasses {
    hosts: Vec<Arc<HostOptions>>,
    min_isolation: Isolation,
    plugins: Arc<Plugins>,
    caps: CapSet,
    /// The first slot of each class, and the end of the last.
    starts: Vec<usize>,
    free: Vec<BinaryHeap<Reverse<usize>>>,
    window: usize,
    window_opens_at: Duration,
    /// The classes whose routines the claim under way leaves out.
    excluded: Vec<ClassId>,
}

impl SlotClasses {
    pub(super) fn new(options: &Options) -> Self {
        let sizes = [options.slots()].into_iter().chain(
            options
                .hosts
                .iter()
                .flat_map(|hosts| [hosts.async_slots(), hosts.plain_slots()]),
        );
        let (mut starts, mut free) = (vec![0], Vec::new());
        for size in sizes {
            let start = starts[starts.len() - 1];
            free.push((start..start + size).map(Reverse).collect());
            starts.push(start + size);
        }
        Self {
            hosts: options.hosts.clone(),
            min_isolation: options.min_isolation,
            plugins: Arc::clone(&options.plugins),
            caps: options.caps.clone(),
            starts,
            free,
            window: FIRST_WINDOW,
            window_opens_at: Duration::ZERO,
            excluded: Vec::new(),
        }
    }

    /// How many slots there are.
    pub(super) fn len(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// How many of them are in use.
    pub(super) fn busy(&self) -> usize {
        self.len() - self.free.iter().map(BinaryHeap::len).sum::<usize>()
    }

    /// The program whose hosts a slot belongs to; `None` for a process.
    pub(super) fn pool_of(&self, slot: usize) -> Option<usize> {
        match self.class_of_slot(slot) {
            PROCESS => None,
            class => Some((class - 1) / 2),
        }
    }

    fn class_of_slot(&self, slot: usize) -> ClassId {
        self.starts.partition_point(|start| *start <= slot) - 1
    }

    /// The needs of a task.
    fn class_of(&self, spec: &TaskSpec) -> ClassId {
        let isolation = spec.isolation().max(self.min_isolation);
        if isolation > Isolation::Process {
            return PROCESS;
        }
        // A task may leave the choice of its handler to the worker.
        let handler = match &spec.target {
            Target::Handler(_) if self.hosts.iter().any(|hosts| hosts.handler.is_some()) => {
                let picked = self.plugins.select(spec, &self.caps).ok();
                picked.map(|(name, _)| name)
            }
            _ => None,
        };
        for (pool, hosts) in self.hosts.iter().enumerate() {
            let kind = match &spec.target {
                Target::Routine(name) if hosts.handler.is_none() => hosts.routines.get(name),
                Target::Handler(_) if handler.is_some() && hosts.handler.as_deref() == handler => {
                    Some(&RoutineKind::Async)
                }
                _ => None,
            };
            // A runner forks fresh processes of this program only.
            let is_able = isolation == Isolation::Shared || hosts.program != HostProgram::Own;
            if let Some(kind) = kind.filter(|_| is_able) {
                return 1 + 2 * pool + usize::from(*kind == RoutineKind::Plain);
            }
        }
        PROCESS
    }

    /// Whether a task can begin now.
    pub(super) fn has_room(&self, claim: &LeasedTask) -> bool {
        !self.free[self.class_of(&claim.spec)].is_empty()
    }

    /// Whether any task could begin now.
    pub(super) fn has_any_room(&self) -> bool {
        self.free.iter().any(|free| !free.is_empty())
    }

    /// Takes a slot for a task that has room.
    pub(super) fn take(&mut self, spec: &TaskSpec) -> Option<usize> {
        let class = self.class_of(spec);
        self.free[class].pop().map(|Reverse(slot)| slot)
    }

    pub(super) fn release(&mut self, slot: usize) {
        let class = self.class_of_slot(slot);
        self.free[class].push(Reverse(slot));
    }

    /// For how many more tasks there is room, as far as it is known that such tasks come.
    pub(super) fn free_for_claim(&self, now: Duration) -> usize {
        let hosts: usize = self.free[1..].iter().map(BinaryHeap::len).sum();
        let window = if self.window == 0 && now >= self.window_opens_at {
            1
        } else {
            self.window
        };
        self.free[PROCESS].len() + hosts.min(window)
    }

    /// When the window opens again, if it is closed.
    pub(super) fn opens_at(&self) -> Option<Duration> {
        (self.window == 0 && !self.hosts.is_empty()).then_some(self.window_opens_at)
    }

    /// Learns what a claim has brought.
    pub(super) fn note_claimed(&mut self, claims: &[LeasedTask], now: Duration) {
        if claims.is_empty() || self.hosts.is_empty() {
            return;
        }
        let for_hosts = claims
            .iter()
            .filter(|claim| self.class_of(&claim.spec) != PROCESS)
            .count();
        if for_hosts == 0 {
            self.window = 0;
            self.window_opens_at = now + WINDOW_PAUSE;
        } else {
            self.window = (self.window * 2).clamp(FIRST_WINDOW, self.len().max(FIRST_WINDOW));
        }
    }

    /// The routines that there is no room for, which a claim leaves to other workers.
    pub(super) fn exclude_full(&mut self) -> Vec<String> {
        self.excluded = (1..self.free.len())
            .filter(|class| self.free[*class].is_empty())
            .collect();
        let of_class = |class: &ClassId| {
            let (pool, is_plain) = ((class - 1) / 2, class.is_multiple_of(2));
            self.hosts[pool]
                .routines
                .iter()
                .filter(move |(_, kind)| (**kind == RoutineKind::Plain) == is_plain)
                .map(|(name, _)| routine_tag(name))
        };
        self.excluded.iter().flat_map(of_class).collect()
    }

    /// Nothing is left out of the claim under way.
    pub(super) fn exclude_nothing(&mut self) {
        self.excluded.clear();
    }

    /// Whether there is room for what the claim under way leaves out.
    pub(super) fn has_room_for_excluded(&self) -> bool {
        self.excluded
            .iter()
            .any(|class| !self.free[*class].is_empty())
    }
}
