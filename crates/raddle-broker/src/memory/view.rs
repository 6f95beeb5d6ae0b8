//! Tasks as others see them.

use std::ops::Bound;

use raddle_core::{TaskView, Tid, tid::ShortTid};

use super::state::{Now, Place, State, Task};
use crate::{
    Demand, Error, Result,
    request::{Summary, TaskFilter, matches_pattern},
};

impl State {
    /// One task.
    pub(super) fn view(&self, tid: Tid) -> Option<TaskView> {
        self.tasks.get(&tid).map(|task| task.view(tid))
    }

    /// The tasks that fit, the newest first.
    pub(super) fn list(&self, filter: &TaskFilter) -> Vec<TaskView> {
        let show = |tasks: &mut dyn Iterator<Item = (&Tid, &Task)>| {
            let fitting = tasks.filter(|(_, task)| task.fits(filter)).take(filter.limit as usize);
            fitting.map(|(tid, task)| task.view(*tid)).collect()
        };
        let completed = filter.short.map(|short| self.complete(short)).unwrap_or_default();
        if let Some(chosen) = filter.chosen(completed) {
            return show(&mut chosen.iter().filter_map(|tid| self.tasks.get_key_value(tid)));
        }
        let older = (Bound::Unbounded, filter.before.map_or(Bound::Unbounded, Bound::Excluded));
        show(&mut self.tasks.range(older).rev())
    }

    /// The ids that end in these digits.
    fn complete(&self, short: ShortTid) -> Vec<Tid> {
        self.tasks.keys().copied().filter(|tid| tid.short() == short).collect()
    }

    /// How many would be claimed before this task.
    pub(super) fn ahead_of(&self, tid: Tid) -> Result<u64> {
        let task = self.tasks.get(&tid).ok_or(Error::NotFound(tid))?;
        Ok(match task.place {
            Place::Ready => self.ready.ahead_of(&task.partition, task.spec.priority, tid),
            _ => 0,
        })
    }

    /// How many there are.
    pub(super) fn summary(&self) -> Summary {
        let mut summary = Summary {
            ready: self.ready.depths(),
            delayed: self.delayed.len() as u64,
            stale_writes: self.stale_writes,
            ..Summary::default()
        };
        for task in self.tasks.values().filter(|task| !task.spec.is_service()) {
            *summary.states.entry(task.state()).or_default() += 1;
            summary.paused += u64::from(task.is_held());
            summary.dead += u64::from(task.is_dead());
        }
        summary
    }
}

impl State {
    /// What waits for workers, and what they have.
    pub(super) fn demand(&self, now: Now) -> Demand {
        let mut demand = Demand { reclaims: self.reclaims, stale_writes: self.stale_writes, ..Demand::default() };
        for (tid, task) in self.tasks.iter().filter(|(_, task)| !task.spec.is_service()) {
            match &task.place {
                Place::Ready => demand.add_spec(*tid, &task.spec, None),
                // A claim would move it first.
                Place::Delayed(due) if due.due <= now.mono => demand.add_spec(*tid, &task.spec, Some(due.at)),
                Place::Delayed(_) => demand.delayed += 1,
                Place::Held(_) => demand.paused += 1,
                Place::Active(_) => demand.active += 1,
                Place::Done(end) => demand.dead += u64::from(end.dead),
            }
        }
        demand
    }
}

impl Task {
    fn view(&self, tid: Tid) -> TaskView {
        let run_at = match self.place {
            Place::Delayed(due) | Place::Held(Some(due)) => Some(due.at),
            _ => None,
        };
        let run = match self.place {
            Place::Active(run) => Some(run),
            _ => None,
        };
        let end = match &self.place {
            Place::Done(end) => Some(end),
            _ => None,
        };
        TaskView {
            tid,
            spec: self.spec.clone(),
            state: self.state(),
            attempt: self.tally.attempt,
            failures: self.tally.failures,
            losses: self.tally.losses,
            paused: self.is_held() || matches!(&self.place, Place::Active(run) if run.paused),
            dead: self.is_dead(),
            run_at,
            parent: self.parent,
            worker: self.worker,
            pid: run.and_then(|run| run.pid),
            chained: self.chained.account.tasks,
            progress: self.progress.clone().filter(|_| run.is_some()),
            created_at: self.created_at,
            claimed_at: run.map(|run| run.claimed_at),
            finished_at: end.map(|end| end.when.wall),
            report: end.map(|end| end.report.clone()),
        }
    }

    fn fits(&self, filter: &TaskFilter) -> bool {
        (filter.states.is_empty() || filter.states.contains(&self.state()))
            && filter.name.as_ref().is_none_or(|pattern| matches_pattern(pattern, self.spec.display_name()))
            && filter.queue.as_ref().is_none_or(|queue| *queue == self.spec.queue)
            && (!filter.dead || self.is_dead())
            && (filter.services || !self.spec.is_service())
    }

    fn is_held(&self) -> bool {
        matches!(self.place, Place::Held(_))
    }

    fn is_dead(&self) -> bool {
        matches!(&self.place, Place::Done(end) if end.dead)
    }
}
