//! The same worker for the same key.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Balancer, BalancerContext, Candidates, attempt, key::weigh, named::STICKY, round_robin,
};
use crate::{
    CallError,
    connection::{CallRequest, ReplyStream},
};

/// Asks the same worker for all calls with the same key: for those that find something there that earlier ones have left, such as a cache.
///
/// Callers in different processes that know the same workers agree on it. When a worker comes or goes, only those keys move that are to be
/// its own, or were (rendezvous hashing). A worker that refuses is stood in for by the next one of that key, the same for all callers. Calls without
/// a key go to one worker after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sticky;

impl Sticky {
    /// A new one.
    pub fn new() -> Self {
        Self
    }
}

#[async_trait]
impl Balancer for Sticky {
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError> {
        let key = call.key();
        let choose = |candidates: &Candidates<'_>| match key {
            Some(key) => choose(candidates, key),
            None => round_robin::choose(candidates, || context.take_turn()),
        };
        attempt(call, context, timeout, choose).await
    }

    fn name(&self) -> Option<&'static str> {
        Some(STICKY)
    }
}

/// The worker that weighs most for this key.
pub(super) fn choose(candidates: &Candidates<'_>, key: u64) -> Option<usize> {
    candidates
        .iter()
        .max_by_key(|(_, worker)| weigh(key, worker.metadata.uid))
        .map(|(place, _)| place)
}
