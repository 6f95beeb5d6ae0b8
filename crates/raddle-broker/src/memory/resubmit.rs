//! A finished task once more, as a new one.

use raddle_core::Tid;

use super::state::{Now, Place, State};
use crate::{Error, Result, request::Submit};

impl State {
    /// Submits the spec of a finished task again. What it said about its first time does not hold for the second.
    pub(super) fn resubmit(&mut self, tid: Tid, now: Now) -> Result<Tid> {
        let task = self.tasks.get(&tid).ok_or(Error::NotFound(tid))?;
        if !task.state().is_terminal() {
            return Err(Error::Unfinished(tid, task.state()));
        }
        let mut spec = task.spec.clone();
        (spec.delay, spec.run_at) = (None, None);
        spec.metadata.insert("retry_of".into(), tid.to_string().into());
        let stored = self.submit(vec![Submit { spec, parent: task.parent }], now)?;
        let again = stored.first().copied().expect("one answer to one task").again(tid)?;
        if let Place::Done(end) = &mut self.known(tid).place {
            end.dead = false;
        }
        Ok(again)
    }
}
