//! The balancer that sends the same key to the same worker.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Balancer, BalancerContext, Candidates, attempt, key::weigh, named::STICKY, round_robin,
};
use crate::{
    CallError,
    connection::{CallRequest, ReplyStream},
};

/// Prefers the same worker for all calls with the same key: for calls that profit from what earlier
/// ones left there, such as a cache.
///
/// Callers in different processes that know the same workers choose alike. When a worker comes or
/// goes, only the keys of that worker move (rendezvous hashing). While a worker refuses, the next
/// one for the key stands in, the same for all callers. Calls without a key are sent round robin.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sticky;

impl Sticky {
    /// Makes the balancer.
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

/// The candidate with the highest weight for this key.
pub(super) fn choose(candidates: &Candidates<'_>, key: u64) -> Option<usize> {
    candidates
        .iter()
        .max_by_key(|(_, worker)| weigh(key, worker.metadata.uid))
        .map(|(index, _)| index)
}
