//! Taking tasks in: all of a batch, or none.

use raddle_core::{Spec, Tally, Tid, spec::Start};

use super::state::{Now, Place, State, Task};
use crate::{
    Result,
    request::{Submit, Submitted},
};

impl State {
    /// Stores a batch.
    pub(super) fn submit(&mut self, batch: Vec<Submit>, now: Now) -> Result<Vec<Submitted>> {
        // Engines that write to a disk would not take what is too long to be written either.
        batch.iter().try_for_each(|submit| submit.written().map(drop))?;
        Ok(batch.into_iter().map(|submit| self.admit(submit, now)).collect())
    }

    pub(super) fn admit(&mut self, submit: Submit, now: Now) -> Submitted {
        let Submit { spec, parent } = submit;
        if let Some(tid) = spec.unique_key.as_ref().and_then(|key| self.unique.get(key)) {
            return Submitted::Existing(*tid);
        }
        let due = spec.start().and_then(|start| match start {
            Start::After(delay) => Some(now.plus(delay)),
            Start::At(at) => now.until(at),
        });
        let key = spec.unique_key.clone();
        let tid = self.store(spec, parent, now);
        self.unique.extend(key.map(|key| (key, tid)));
        self.note_expiry(tid);
        self.line_up(tid, due, now);
        Submitted::New(tid)
    }

    /// Stores a task that is nowhere yet. Its record stands for its `created` event.
    pub(super) fn store(&mut self, spec: Spec, parent: Option<Tid>, now: Now) -> Tid {
        let tid = self.next_id(now);
        let task = Task {
            partition: super::ready::Partition::of(&spec),
            spec,
            parent,
            created_at: now.wall,
            tally: Tally::default(),
            place: Place::Held(None),
            worker: None,
            progress: None,
            chained: Default::default(),
            events: Vec::new(),
        };
        self.tasks.insert(tid, task);
        self.wake.progress = true;
        tid
    }
}
