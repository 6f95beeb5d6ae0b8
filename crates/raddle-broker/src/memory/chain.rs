//! Tasks that stand aside until the attempt that chained them has succeeded.

use super::state::{Now, State};
use crate::{
    Chain, Error, Result,
    chain::Account,
    request::{Fence, Submit},
};

/// What an attempt has chained. It goes with the attempt.
#[derive(Default)]
pub(super) struct Chained {
    pub(super) account: Account,
    pub(super) tasks: Vec<Submit>,
}

impl State {
    /// Lets tasks follow an attempt, if it is the latest.
    pub(super) fn chain(&mut self, chain: &Chain, now: Now) -> Result<u64> {
        let Chain { fence, told, .. } = *chain;
        let sizes: Vec<usize> = chain.written()?.iter().map(String::len).collect();
        if !self.tasks.contains_key(&fence.tid) {
            return Err(Error::NotFound(fence.tid));
        }
        if self.active(fence).is_none() {
            self.refuse(fence, now);
            return Err(Chain::superseded(fence));
        }
        let chained = &mut self.known(fence.tid).chained;
        let known = chained.account.add(fence, told, &sizes)?;
        chained.tasks.extend(chain.submissions().skip(known));
        Ok(chained.account.tasks)
    }

    /// What has been chained by an attempt that has succeeded.
    pub(super) fn take_chained(&mut self, fence: Fence) -> Vec<Submit> {
        std::mem::take(&mut self.known(fence.tid).chained).tasks
    }
}
