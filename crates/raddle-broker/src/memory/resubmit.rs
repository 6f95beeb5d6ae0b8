//! A finished task once more, as a new one.

use raddle_core::Tid;

use super::state::{Now, Place, State};
use crate::{Error, Result, request::Submit};

impl State {
    /// Submits a finished task again, or only a dead letter.
    pub(super) fn resubmit(&mut self, tid: Tid, dead: bool, now: Now) -> Result<Tid> {
        let old = self.view(tid).ok_or(Error::NotFound(tid))?;
        let stored = self.submit(vec![Submit::once_more(old, dead)?], now)?;
        let again = stored.first().copied().expect("one answer to one task").again(tid)?;
        if let Place::Done(end) = &mut self.known(tid).place {
            end.dead = false;
        }
        Ok(again)
    }
}
