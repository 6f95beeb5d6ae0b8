//! The worker with the least to do.

use std::time::Duration;

use async_trait::async_trait;

use super::{Balancer, BalancerContext, Candidates, attempt, named::LEAST_LOADED};
use crate::{
    CallError,
    connection::{CallRequest, ReplyStream},
};

/// Asks the worker that has the fewest calls in flight: handed to it by this pool, and not over. Among equals, one after the other.
///
/// It looks at every worker for every call. For many workers, and for calls that differ much in how long they take, there is
/// [`PowerOfTwo`](super::PowerOfTwo).
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastLoaded;

impl LeastLoaded {
    /// A new one.
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
    // Of equals, the first is taken.
    candidates
        .iter_from(turn)
        .min_by_key(|(_, worker)| worker.in_flight())
        .map(|(place, _)| place)
}
