//! The balancer that compares two random workers.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{Balancer, BalancerContext, Candidates, Endpoint, attempt, named::POWER_OF_TWO};
use crate::{
    CallError,
    connection::{CallRequest, ReplyStream},
};

/// Prefers, of two random workers, the one with the lower expected latency: recent latency times
/// calls in flight.
///
/// Two choices are enough to avoid nearly all busy workers, at a cost that does not depend on
/// their number, and callers do not all run to the one worker that looks best. The first slow call
/// shows that a worker is slow; it regains calls gradually.
#[derive(Clone, Copy, Debug, Default)]
pub struct PowerOfTwo;

impl PowerOfTwo {
    /// Makes the balancer.
    pub fn new() -> Self {
        Self
    }
}

#[async_trait]
impl Balancer for PowerOfTwo {
    async fn dispatch(
        &self,
        call: CallRequest,
        context: &BalancerContext,
        timeout: Option<Duration>,
    ) -> Result<ReplyStream, CallError> {
        attempt(call, context, timeout, |candidates| {
            choose(candidates, random)
        })
        .await
    }

    fn name(&self) -> Option<&'static str> {
        Some(POWER_OF_TWO)
    }
}

/// A number below `end`, which is not 0. It need not be unpredictable: each `RandomState` has
/// different keys.
fn random(end: usize) -> usize {
    (RandomState::new().hash_one(()) % end as u64) as usize
}

/// `below` returns a random number below its argument.
pub(super) fn choose(candidates: &Candidates<'_>, below: impl Fn(usize) -> usize) -> Option<usize> {
    let count = candidates.worker_count();
    if count >= 2 {
        let (one, other) = pick_two(count, &below);
        if let (Some(first), Some(second)) = (candidates.get(one), candidates.get(other)) {
            return Some(if is_better(second, first, candidates.now) {
                other
            } else {
                one
            });
        }
    }
    // One of the two is no candidate, so collect those that are.
    let all: Vec<_> = candidates.iter().collect();
    match all[..] {
        [] => None,
        [(index, _)] => Some(index),
        _ => {
            let (one, other) = pick_two(all.len(), &below);
            let ((one, first), (other, second)) = (all[one], all[other]);
            Some(if is_better(second, first, candidates.now) {
                other
            } else {
                one
            })
        }
    }
}

/// Two different random numbers below `end`, which is at least 2.
fn pick_two(end: usize, below: impl Fn(usize) -> usize) -> (usize, usize) {
    let one = below(end);
    (one, (one + 1 + below(end - 1)) % end)
}

fn is_better(this: &Endpoint, than: &Endpoint, now: Instant) -> bool {
    let calls = |worker: &Endpoint| worker.in_flight() + 1;
    match (this.health.latency(now), than.health.latency(now)) {
        (Some(ours), Some(theirs)) => ours * (calls(this) as f64) < theirs * (calls(than) as f64),
        // Without latency of both, only the load can be compared.
        _ => calls(this) < calls(than),
    }
}
