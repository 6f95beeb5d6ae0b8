//! The balancer that takes workers in turn.

use std::time::Duration;

use async_trait::async_trait;

use super::{Balancer, BalancerContext, Candidates, attempt};
use crate::{
    CallError,
    connection::{CallRequest, ReplyStream},
};

/// Takes workers in turn, one call each. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl RoundRobin {
    /// Makes the balancer.
    pub fn new() -> Self {
        Self
    }
}

#[async_trait]
impl Balancer for RoundRobin {
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError> {
        attempt(call, context, timeout, |candidates| {
            choose(candidates, || context.take_turn())
        })
        .await
    }
}

/// The next worker in turn. One that is no candidate misses its turn, so that its neighbour
/// does not get twice as many calls.
pub(super) fn choose(candidates: &Candidates<'_>, take_turn: impl Fn() -> usize) -> Option<usize> {
    let count = candidates.worker_count();
    let in_turn = (0..count)
        .map(|_| take_turn() % count)
        .find(|index| candidates.get(*index).is_some());
    // Concurrent calls may have taken turns too, so that only indices without a candidate were
    // left.
    in_turn.or_else(|| candidates.iter().map(|(index, _)| index).next())
}
