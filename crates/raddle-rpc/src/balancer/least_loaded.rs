//! The balancer that prefers the worker with the fewest calls in flight.

use std::time::Duration;

use async_trait::async_trait;

use super::{Balancer, BalancerContext, Candidates, attempt, named::LEAST_LOADED};
use crate::{
    CallError,
    connection::{CallRequest, ReplyStream},
};

/// Prefers the worker with the fewest calls in flight from this pool; equals take turns.
///
/// It inspects every worker for every call. For many workers, or calls of very different duration,
/// use [`PowerOfTwo`](super::PowerOfTwo).
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastLoaded;

impl LeastLoaded {
    /// Makes the balancer.
    pub fn new() -> Self {
        Self
    }
}

#[async_trait]
impl Balancer for LeastLoaded {
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError> {
        attempt(call, context, timeout, |candidates| {
            choose(candidates, context.take_turn())
        })
        .await
    }

    fn name(&self) -> Option<&'static str> {
        Some(LEAST_LOADED)
    }
}

fn choose(candidates: &Candidates<'_>, turn: usize) -> Option<usize> {
    // `min_by_key` returns the first of equals.
    candidates
        .iter_from(turn)
        .min_by_key(|(_, worker)| worker.in_flight())
        .map(|(index, _)| index)
}
