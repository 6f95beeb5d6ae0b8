//! The better one of two workers.

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

/// Asks, of two workers at random, the one that promises to be done first: by how long its calls have taken of late, and how many it has.
///
/// Two are enough to avoid nearly all that are busy, and it does not matter how many workers there are. Nor do all callers run to the one worker
/// that looks best to all of them. A worker that becomes slow is noticed with its first slow call, and trusted again bit by bit.
#[derive(Clone, Copy, Debug, Default)]
pub struct PowerOfTwo;

impl PowerOfTwo {
    /// A new one.
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

/// A number below `end`, which is not 0. No secret hangs on it: each `RandomState` has other keys.
fn random(end: usize) -> usize {
    (RandomState::new().hash_one(()) % end as u64) as usize
}

/// `below` gives numbers below another.
pub(super) fn choose(candidates: &Candidates<'_>, below: impl Fn(usize) -> usize) -> Option<usize> {
    let places = candidates.places();
    if places >= 2 {
        let (one, other) = two(places, &below);
        if let (Some(first), Some(second)) = (candidates.get(one), candidates.get(other)) {
            return Some(if is_better(second, first, candidates.now) {
                other
            } else {
                one
            });
        }
    }
    // Some place has no candidate, so that they have to be counted.
    let all: Vec<_> = candidates.iter().collect();
    match all[..] {
        [] => None,
        [(place, _)] => Some(place),
        _ => {
            let (one, other) = two(all.len(), &below);
            let ((one, first), (other, second)) = (all[one], all[other]);
            Some(if is_better(second, first, candidates.now) {
                other
            } else {
                one
            })
        }
    }
}

/// Two different numbers below `end`, which is 2 at least.
fn two(end: usize, below: impl Fn(usize) -> usize) -> (usize, usize) {
    let one = below(end);
    (one, (one + 1 + below(end - 1)) % end)
}

fn is_better(this: &Endpoint, than: &Endpoint, now: Instant) -> bool {
    let calls = |worker: &Endpoint| worker.in_flight() + 1;
    match (this.standing.latency(now), than.standing.latency(now)) {
        (Some(ours), Some(theirs)) => ours * (calls(this) as f64) < theirs * (calls(than) as f64),
        // Of a worker that has finished nothing yet it is only known what it has to do.
        _ => calls(this) < calls(than),
    }
}
