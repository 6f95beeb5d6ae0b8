//! Reading the event log.

use std::{ops::Bound, time::Duration};

use async_trait::async_trait;
use raddle_core::{Event, EventKind, Tid};

use super::{
    Memory,
    shared::Topic,
    state::{State, Task, behind},
};
use crate::{Log, Result};

#[async_trait]
impl Log for Memory {
    async fn events(&self, after: u64, tid: Option<Tid>, max: u32, wait: Duration) -> Result<Vec<Event>> {
        let read = |state: &mut State| match tid {
            Some(tid) => state.events_of(tid, after, max as usize),
            None => state.events_after(after, max as usize),
        };
        let found = self
            .shared
            .wait_for(Topic::Progress, wait, |state, _| Ok(Some(read(state)).filter(|events| !events.is_empty())))
            .await?;
        Ok(found.unwrap_or_default())
    }

    async fn last_event(&self) -> Result<u64> {
        Ok(self.shared.change(|state, _| state.last_event()))
    }
}

impl State {
    /// The events of one task.
    pub(super) fn events_of(&self, tid: Tid, after: u64, max: usize) -> Vec<Event> {
        let Some(task) = self.tasks.get(&tid) else { return Vec::new() };
        let created = Some(task.created(tid)).filter(|event| event.id.as_u64() > after);
        let from = task.events.partition_point(|id| id.as_u64() <= after);
        let later = task.events[from..].iter().filter_map(|id| self.events.get(id)).cloned();
        created.into_iter().chain(later).take(max).collect()
    }

    /// The events of all tasks: the log and the tasks themselves, merged by id.
    fn events_after(&self, after: u64, max: usize) -> Vec<Event> {
        let after = behind(after);
        let range = (after, Bound::Unbounded);
        let mut created = self.tasks.range(range).map(|(tid, task)| task.created(*tid)).peekable();
        let mut logged = self.events.range(range).map(|(_, event)| event.clone()).peekable();
        let next = || match (created.peek(), logged.peek()) {
            (Some(a), Some(b)) if a.id < b.id => created.next(),
            (Some(_), None) => created.next(),
            _ => logged.next(),
        };
        std::iter::from_fn(next).take(max).collect()
    }

    fn last_event(&self) -> u64 {
        let ends = [self.tasks.last_key_value().map(|(tid, _)| tid), self.events.last_key_value().map(|(id, _)| id)];
        ends.into_iter().flatten().max().map_or(0, |id| id.as_u64())
    }
}

impl Task {
    fn created(&self, tid: Tid) -> Event {
        let at = self.created_at;
        Event { id: tid, tid, event: EventKind::Created, at, attempt: 0, worker: None, detail: None }
    }
}
