//! One worker after the other.

use std::time::Duration;

use async_trait::async_trait;

use super::{Balancer, BalancerContext, Candidates, attempt};
use crate::{
    CallError,
    connection::{CallRequest, ReplyStream},
};

/// Asks one worker after the other, each call the next. The default.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl RoundRobin {
    /// A new one.
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

/// Whose turn it is. Who is no candidate misses it, and so it does not come down on the one next to it every time.
pub(super) fn choose(candidates: &Candidates<'_>, take_turn: impl Fn() -> usize) -> Option<usize> {
    let places = candidates.places();
    let on_turn = (0..places)
        .map(|_| take_turn() % places)
        .find(|place| candidates.get(*place).is_some());
    // Others may have taken turns meanwhile, and left us those of no candidate.
    on_turn.or_else(|| candidates.iter().map(|(place, _)| place).next())
}
