//! Schedules, and tasks that expire.

use std::time::Duration;

use async_trait::async_trait;
use raddle_core::{Exit, State as TaskState, Tid, moment::unix_nanos};
use tokio::time::Instant;

use super::{
    Memory,
    shared::Topic,
    state::{Now, Place, State},
};
use crate::{
    Agenda, Result, ScheduleChange, ScheduleChanged, ScheduleView, Schedules,
    schedules::{AGENDA, EXPIRED_AT_ONCE},
    wait::SAFETY_INTERVAL,
};

#[async_trait]
impl Schedules for Memory {
    async fn schedules(&self, name: Option<String>) -> Result<Vec<ScheduleView>> {
        let is_meant = |view: &&ScheduleView| name.as_ref().is_none_or(|name| *name == view.entry.schedule.name);
        Ok(self.shared.change(|state, _| state.schedules.values().filter(is_meant).cloned().collect()))
    }

    async fn change_schedule(&self, change: ScheduleChange) -> Result<ScheduleChanged> {
        change.written()?;
        self.shared.change(|state, now| state.change_schedule(change, now))
    }

    async fn agenda(&self, wait: Duration) -> Result<Agenda> {
        let look = |state: &mut State, now: Now| Ok(Some(state.agenda(now)).filter(|agenda| !agenda.is_empty()));
        let found = self.shared.wait_for(Topic::Agenda, wait, look).await?;
        Ok(match found {
            Some(found) => found,
            None => self.shared.change(|state, now| state.agenda(now)),
        })
    }

    async fn expire(&self) -> Result<u64> {
        Ok(self.shared.change(State::expire))
    }
}

impl State {
    fn change_schedule(&mut self, change: ScheduleChange, now: Now) -> Result<ScheduleChanged> {
        let ScheduleChange { name, seen, entry, tasks, due } = change;
        let before = self.schedules.get(&name);
        if before.map(|before| before.version) != seen {
            return Ok(ScheduleChanged::Raced);
        }
        if due.is_some_and(|due| due > now.wall) {
            return Ok(ScheduleChanged::Early);
        }
        let task = before.and_then(|before| before.task);
        let submitted = self.submit(tasks, now)?;
        let task = submitted.last().map(|last| last.tid()).or(task);
        let version = self.next_id(now);
        match entry {
            Some(entry) => _ = self.schedules.insert(name, ScheduleView { version, task, entry }),
            None => _ = self.schedules.remove(&name),
        }
        self.wake.agenda = true;
        Ok(ScheduleChanged::Made { version, submitted })
    }

    fn agenda(&self, now: Now) -> Agenda {
        let is_due = |view: &&ScheduleView| view.entry.due().is_some_and(|due| due <= now.wall);
        let mut due: Vec<ScheduleView> = self.schedules.values().filter(is_due).cloned().collect();
        due.sort_by_key(|view| view.entry.due());
        due.truncate(AGENDA);
        let expired = self.expiring.first().is_some_and(|(at, _)| *at <= unix_nanos(now.wall));
        Agenda { now: now.wall, due, expired }
    }

    /// When there is something to be done, as far as is known.
    pub(super) fn next_on_agenda(&self, now: Now) -> Option<Instant> {
        let due = self.schedules.values().filter_map(|view| view.entry.due()).map(unix_nanos).min();
        let next = due.into_iter().chain(self.expiring.first().map(|(at, _)| *at)).min()?;
        let wait = Duration::from_nanos(u64::try_from(next - unix_nanos(now.wall)).unwrap_or(0));
        // The wall clock may be set meanwhile.
        Some(now.mono + wait.clamp(Duration::from_millis(1), SAFETY_INTERVAL))
    }

    /// Notes that a new task expires, if it does.
    pub(super) fn note_expiry(&mut self, tid: Tid) {
        let Some(at) = self.known(tid).spec.expires_at(tid) else { return };
        self.wake.agenda |= self.expiring.first().is_none_or(|first| (at, tid) < *first);
        self.expiring.insert((at, tid));
    }

    fn expire(&mut self, now: Now) -> u64 {
        let mut ended = 0;
        for _ in 0..EXPIRED_AT_ONCE {
            let Some((_, tid)) = self.expiring.first().copied().filter(|(at, _)| *at <= unix_nanos(now.wall)) else {
                break;
            };
            self.expiring.pop_first();
            ended += u64::from(self.end_expired(tid, now));
        }
        ended
    }

    /// Ends a task if it waits and has expired.
    pub(super) fn end_expired(&mut self, tid: Tid, now: Now) -> bool {
        let Some(task) = self.tasks.get(&tid) else { return false };
        let waits = matches!(task.place, Place::Ready | Place::Delayed(_) | Place::Held(_));
        let has_expired = waits && task.spec.has_expired(tid, task.tally, unix_nanos(now.wall));
        if has_expired {
            let fence = task.fence(tid);
            self.end_waiting(fence, TaskState::Cancelled, Exit::Expired, now);
        }
        has_expired
    }
}
